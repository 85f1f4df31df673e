# Makes the environment that scripts/quickstart.sh and scripts/test.sh run in; to be sourced.
#
#   make_environment FOLDER EXTRAS     e.g. make_environment .venv fairseq,test
#
# Installs torch first, in the build that fits the Python at hand, so that nothing pulls another
# one. Sets PY to the environment's Python. A finished environment is reused until setup.py changes.
# PYTHON chooses the interpreter.

make_environment() {
  local folder=$1 extras=$2 python=${PYTHON:-python3} version stamp
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || {
    echo "error: $python does not run; set PYTHON to a Python 3.8-3.12" >&2
    return 1
  }
  case $version in
    3.8 | 3.9 | 3.10 | 3.11 | 3.12) ;;
    *)
      echo "error: $python is Python $version; set PYTHON to a Python 3.8-3.12" >&2
      return 1
      ;;
  esac
  PY=$folder/bin/python
  stamp="$version $extras $(cksum <setup.py) $(pwd)"
  [ -x "$PY" ] && [ "$(cat "$folder/.made" 2>/dev/null)" = "$stamp" ] && return 0
  echo "== Making the environment $folder (Python $version); some minutes the first time"
  rm -rf "$folder"
  "$python" -m venv "$folder"
  case $version in
    3.8 | 3.9 | 3.10)
      # fairseq 0.12.2 asks for an omegaconf whose metadata newer pips refuse, and its torch is
      # built for numpy 1.
      "$PY" -m pip install -q 'pip<24.1' 'setuptools<70' wheel
      "$PY" -m pip install -q 'numpy<2' torch==1.12.1 torchaudio==0.12.1
      "$PY" -m pip install -q 'numpy<2' -e ".[$extras]"
      ;;
    *)
      "$PY" -m pip install -q torch==2.13.0
      "$PY" -m pip install -q -e ".[$extras]"
      ;;
  esac
  echo "$stamp" >"$folder/.made"
}
