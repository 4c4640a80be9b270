#!/usr/bin/env bash
# Runs each framework's adapter test with the real framework, each in a virtual environment of its own (their pins
# conflict). Usage: scripts/test_adapters.sh [name ...]; without names, all of them. Environments are kept between runs
# in $ADAPTER_VENVS (default .adapters/); delete one to have it made anew.
set -uo pipefail
cd "$(dirname "$0")/.."
venvs=${ADAPTER_VENVS:-.adapters}
python=${PYTHON:-python3}
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

# name: what to install, then the test file. torch comes first and alone, so that nothing pulls in another build of it.
packages() {
    case $1 in
        sb3) echo "torch==2.13.0 | stable-baselines3==2.9.2 sb3-contrib==2.9.2" ;;
        gem) echo "torch==2.13.0 | gem-llm==0.1.0" ;;
        skyrl) echo "skyrl-gym==0.4.0" ;;
        textarena) echo "textarena==0.7.4" ;;
        verifiers) echo "verifiers==0.4.0" ;;
        openenv) echo "openenv==0.10.0" ;;
        inspect) echo "inspect-ai==0.3.285 openai==3.57.0" ;;
        rllib) echo "torch==2.13.0 | ray[rllib]==2.60.0" ;;
        transformers_serve) echo "torch==2.13.0 | transformers[serving]==5.24.0 accelerate==1.15.0" ;;
        evaluate) echo "numpy" ;;
        *) echo "unknown adapter: $1" >&2; return 1 ;;
    esac
}
test_of() { case $1 in sb3) echo numeric ;; inspect) echo inspect_ai ;; *) echo "$1" ;; esac; }

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(evaluate gem skyrl textarena verifiers openenv inspect rllib transformers_serve sb3)
failed=()
for name in "${names[@]}"; do
    wanted=$(packages "$name") || exit 2
    venv=$venvs/$name
    if [ ! -f "$venv/.installed" ] || [ pyproject.toml -nt "$venv/.installed" ]; then
        "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet pytest --editable . || exit 1
        IFS='|' read -ra steps <<<"$wanted"
        for step in "${steps[@]}"; do
            # shellcheck disable=SC2086  # several packages in one step
            "$venv/bin/pip" install --quiet $step || exit 1
        done
        touch "$venv/.installed"
    fi
    echo "== $name"
    "$venv/bin/python" -m pytest -s -p no:cacheprovider "tests/adapters/test_$(test_of "$name").py" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
