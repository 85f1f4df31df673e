"""Learning without targets: objectives, input noise, and steps at inference."""
