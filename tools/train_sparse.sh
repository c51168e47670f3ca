#!/bin/sh
# Train by a configuration, or go on with it: set it here, or pass it. Add -e to evaluate. A float configuration
# (runner: base) trains the float network, whose checkpoint a sparse one names as pretrain_model.
#
#     sh train_sparse.sh [CONFIG.yaml] [-e] [START]
cfg=sparse.yaml
case "$1" in *.yaml | *.yml | *.json) cfg=$1; shift ;; esac
exec "${PYTHON:-python3}" "$(dirname "$0")/train_sparse.py" --config "$cfg" "$@"
