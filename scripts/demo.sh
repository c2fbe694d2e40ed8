#!/usr/bin/env bash
# From a fresh clone to a picture: install into .venv, run the samples.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PICTURE=out/render_pipeline.png

sample() {
  say
  say "== python $*"
  "$VENV/bin/python" "$@"
}

make_venv samples
scripts/setup-vulkan.sh
mkdir -p out

sample samples/photo_classifier.py
photo=$("$VENV/bin/python" -c 'from sklearn.datasets import load_sample_images as l; print(l().filenames[0])')
sample -m webnn_py run out/efficientnet_lite0.onnx --input "$photo" --labels out/imagenet.txt \
  --mean 0.498 --std 0.502
sample samples/digits.py
sample samples/asyncio_server.py

has_adapter='import sys; from webnn_py.cli.info import gpu; sys.exit(not gpu())'
if "$VENV/bin/python" -c "$has_adapter"; then
  sample samples/render_pipeline.py --output "$PICTURE"
  sample samples/mpm88.py --picture out/mpm88.png --program out/mpm88.mlprogram
  say
  say "Done in $SECONDS s. The picture: $ROOT/$PICTURE"
else
  say
  say "Done in $SECONDS s, without a picture: there is no GPU for samples/render_pipeline.py."
fi
