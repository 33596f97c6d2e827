#!/usr/bin/env bash
# A campaign as a Flux job that submits itself again until its budget is used up, twenty times at most; from the folder
# of the repository:
#     file=jobs/digits_cluster.toml flux batch jobs/flux.sh
# flux: --job-name=hpo
# flux: --nodes=16
# flux: --exclusive
# flux: --time-limit=8h
# flux: --output=hpo-{{id}}.out

# What your site needs comes here, for example: module load openmpi
set -uo pipefail  # not before: a site's own lines may ask for variables that are not set
export PATH="$PWD/.venv/bin":"$PATH"

# `flux cancel` signals `hpo run`, too, which stops in good order. Before the time limit it does so by itself.
cancelled=
trap 'cancelled=1' HUP TERM
hpo run "$file" --ranks "$(flux resource list --no-header --format '{ngpus}')"
code=$?
left=$((${left:-20} - 1))
if ((code == 75 && left > 0)) && [[ -z $cancelled ]]; then
    file=$file left=$left flux --parent batch jobs/flux.sh
fi
exit "$code"
