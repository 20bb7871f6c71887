#!/bin/sh
# Environments of the peers that `fedstale bench --against jax,fedjax,flower,pfl` measures, each with its own packages:
#   benchmarks/peers.sh [jax] [flower] [pfl]      (jax has FedJAX, too)
# They are made in .cache/peers (or $FEDSTALE_PEERS) with the same torch as ours.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
FOLDER=${FEDSTALE_PEERS:-.cache/peers}
TORCH=$("$PYTHON" -c 'import torch; print(torch.__version__.split("+")[0])')

for name in ${*:-jax flower pfl}; do
  case $name in
    jax) packages='jax==0.10.2 jaxlib==0.10.2 fedjax==0.0.17 dm-haiku==0.0.17 optax==0.2.8' ;;
    flower) packages='flwr[simulation]==1.41.0' ;;
    pfl) packages='pfl[pytorch]==0.6.0' ;;
    *) echo "peers.sh: a peer must be jax, flower or pfl, got $name" >&2; exit 2 ;;
  esac
  ready="$FOLDER/$name/.ready-$(echo "$packages $TORCH" | tr -c 'a-z0-9.\n' '-')"
  test -e "$ready" && continue
  echo "$name: $packages, torch $TORCH"
  "$PYTHON" -m venv "$FOLDER/$name"
  "$FOLDER/$name/bin/pip" install --quiet "torch==$TORCH" platformdirs $packages  # the workloads are ours
  touch "$ready"
done
