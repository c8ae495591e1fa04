#!/bin/sh
# Run one graph of this bundle with `polygraphy run` and hold it against the float64 reference.
# Needs Polygraphy and the runtime, not Blockforge. Exit status 0: within the recipe's limits.
#
#   sh polygraphy/compare.sh fp32                       ONNX Runtime on the CPU
#   sh polygraphy/compare.sh fp16 onnxruntime-cuda      ONNX Runtime on a GPU
#   sh polygraphy/compare.sh fp16 tensorrt-rtx-sm89     an engine of this bundle, on its GPU
# Further arguments go to `polygraphy run`.
set -eu
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
    sed -n '2,8s/^# \{0,1\}//p' polygraphy/compare.sh
    exit 2
fi
variant=$1
target=${2:-onnxruntime-cpu}
shift
[ $# -eq 0 ] || shift
case $target in
    onnxruntime-*) set -- "$variant/model.onnx" --onnxrt --providers "${target#onnxruntime-}" "$@" ;;
    tensorrt-rtx-*)
        export POLYGRAPHY_USE_TENSORRT_RTX=1
        set -- "$variant/engines/$target.plan" --trt --model-type engine "$@"
        ;;
    tensorrt-*) set -- "$variant/engines/$target.plan" --trt --model-type engine "$@" ;;
    *) echo "no target $target" >&2; exit 2 ;;
esac
[ -f "$1" ] || { echo "the bundle has no $1" >&2; exit 2; }
exec polygraphy run "$@" \
    --data-loader-script "polygraphy/checks.py:load_$variant" \
    --load-outputs polygraphy/outputs.json \
    --compare-func-script "polygraphy/checks.py:$variant"
