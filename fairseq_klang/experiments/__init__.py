"""The experiments: recipes, their runner, comparing, the studies and the benchmarks."""
