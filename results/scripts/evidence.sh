#!/usr/bin/env bash
# The runs of docs/results.md that take hours, a stage at a time. Started again, it resumes: runs from their checkpoints,
# and what is in results/ already is not run again. After each stage what is finished is copied into results/.
#
#     nohup nice -n 19 bash results/scripts/evidence.sh DATA [STAGE…] &      from a checkout, DATA as in ../shared/data
#
# Every run has one thread, JOBS of them (2) at once. Core-hours as measured or estimated on one core of an EPYC of 2026:
#   pair         enwik8: RoPE and RoPE + values at 0.36 million parameters, 5 seeds                1.4
#   grid         enwik8: {none, scores, values, both} × {fixed, learned, projected, cumulative}    1.2 at 0.1 million
#   wikitext-2   RoPE and RoPE + values at 0.1 million parameters, 3 seeds                         0.3
#   hierarchy    10 models on enwik8, 1,500 steps, 3 seeds                                         1.5
#   length       7 models, 5,000 steps, 3 seeds, the same bytes at every length                    2.7
#   video-long   what moved where, 1,500 steps instead of 300, 3 seeds                             0.3
#   video-longer the same, 6,000 steps, fixed angles                                               0.5
#   points-long  points with ink, 1,500 steps instead of 300, 3 seeds                              0.2
#   trees-long   hidden nodes, 2,500 steps instead of 500, 3 seeds                                 0.4
#   cifar100-long   RoPE and RoPE + values, 5 epochs, 3 seeds                                      0.4
#   cifar100     5 models, 20 epochs, 3 seeds                                                      3.6
#   large-pair   enwik8: RoPE and RoPE + values at 1 million parameters, 3 seeds                   4.3
#   middle       enwik8: learned and projected at 0.36 million parameters, 5 seeds                 1.4
#   middle-cumulative   the same for cumulative                                                    0.7
#   large        enwik8: projected at 1 million parameters, 3 seeds                                1.8
#   grid-middle  the grid at 0.36 million parameters, 3 seeds                                      3.0
set -euo pipefail
cd "$(dirname "$0")/../.."
data=$1
shift
jobs=${JOBS:-2}
export OMP_NUM_THREADS=1
bin=.venv/bin

enwik8() { "$bin/python" results/scripts/enwik8.py --data "$1" --out "$2" --jobs "$jobs" "${@:3}"; }
reproduce() { "$bin/joformer" reproduce "$1" --data "$data" --seeds 3 --jobs "$jobs" --out "$2" "${@:3}"; }

if [ $# = 0 ]; then # all of them, in the order above
    set -- pair grid wikitext-2 hierarchy length video-long video-longer points-long trees-long cifar100-long cifar100 \
        large-pair middle middle-cumulative large grid-middle
fi
for stage in "$@"; do
    folder=$stage
    case $stage in pair | grid | large-pair | middle | middle-cumulative | large | grid-middle) folder=enwik8 ;; esac
    mkdir -p runs
    if [ -d "results/$folder" ] && [ ! -d "runs/$folder" ]; then cp -r "results/$folder" "runs/$folder"; fi
    out=runs/$folder
    text=$data/enwik8/enwik8.xz
    case $stage in
        pair | large-pair | middle | middle-cumulative | large) enwik8 "$text" "$out" "$stage" ;;
        grid) enwik8 "$text" "$out" grid-small ;;
        grid-middle) enwik8 "$text" "$out" grid ;;
        wikitext-2) enwik8 "$data/wikitext-2" "$out" second ;;
        length) reproduce length "$out" --steps 5000 ;;
        video-long)
            reproduce video "$out" --steps 1500 --only 'mnist-video-class/scores-*' 'mnist-video-class/both-*'
            ;;
        video-longer)
            reproduce video "$out" --steps 6000 --only 'mnist-video-class/scores-fixed/*' 'mnist-video-class/both-fixed/*'
            ;;
        points-long)
            reproduce points "$out" --steps 1500 --only 'mnist-points-ink/coordinates/*' 'mnist-points-ink/*-fixed/*'
            ;;
        trees-long)
            "$bin/joformer" reproduce trees --seeds 3 --jobs "$jobs" --out "$out" --steps 2500 \
                --only 'trees/*-fixed/masked/*' 'trees/*-tree-dense/masked/*' # of Python's own library, not DATA
            ;;
        cifar100-long)
            reproduce cifar100 "$out" --steps 1953 --only 'cifar100/rope2d/*' 'cifar100/joformer-old/*'
            ;;
        cifar100)
            reproduce cifar100 "$out" --steps 7812 --only 'cifar100/learned/*' 'cifar100/rope2d/*' \
                'cifar100/joformer-old/*' 'cifar100/monoidal-axial/*' 'cifar100/joformer-axial/*'
            ;;
        hierarchy) reproduce hierarchy "$out" ;;
        *)
            echo "evidence.sh: there is no stage $stage" >&2
            exit 2
            ;;
    esac
    "$bin/python" results/scripts/keep.py "$out" "results/$folder"
done
