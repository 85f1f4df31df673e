#!/usr/bin/env bash
# Trains, translates and scores one recipe of the series: klang recipe, with the arguments given.
set -euo pipefail
exec klang recipe "$@"
