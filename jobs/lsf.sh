#!/usr/bin/env bash
# A campaign as an LSF job that submits itself again until its budget is used up, twenty times at most; from the folder
# of the repository:
#     file=jobs/digits_cluster.toml bsub < jobs/lsf.sh
#BSUB -J hpo
#BSUB -n 64
#BSUB -R "span[ptile=4]"
#BSUB -gpu "num=4"
#BSUB -W 8:00
#BSUB -o hpo.%J.out

# What your site needs comes here, for example: module load openmpi
set -uo pipefail  # not before: a site's own lines may ask for variables that are not set
export PATH="$PWD/.venv/bin":"$PATH"

# bkill signals `hpo run`, too, which stops in good order. Before the time limit it does so by itself.
cancelled=
trap 'cancelled=1' INT TERM
hpo run "$file" --ranks "$LSB_DJOB_NUMPROC"
code=$?
left=$((${left:-20} - 1))
if ((code == 75 && left > 0)) && [[ -z $cancelled ]]; then
    file=$file left=$left bsub < jobs/lsf.sh
fi
exit "$code"
