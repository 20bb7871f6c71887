#!/bin/sh
# Environments of the peers that `fedstale bench --against flower,pfl` measures, each with its own packages:
#   benchmarks/peers.sh [flower] [pfl]
# They are made in .cache/peers (or $FEDSTALE_PEERS) with the same torch as ours.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
FOLDER=${FEDSTALE_PEERS:-.cache/peers}
TORCH=$("$PYTHON" -c 'import torch; print(torch.__version__.split("+")[0])')

for name in ${*:-flower pfl}; do
  case $name in
    flower) packages='flwr[simulation]==1.41.0' ;;
    pfl) packages='pfl[pytorch]==0.6.0' ;;
    *) echo "peers.sh: a peer must be flower or pfl, got $name" >&2; exit 2 ;;
  esac
  echo "$name: $packages, torch $TORCH"
  "$PYTHON" -m venv "$FOLDER/$name"
  "$FOLDER/$name/bin/pip" install --quiet "torch==$TORCH" "$packages"
done
