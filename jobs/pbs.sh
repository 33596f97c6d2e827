#!/usr/bin/env bash
# A campaign as a PBS job that submits itself again until its budget is used up, twenty times at most; from the folder
# of the repository:
#     qsub -v file=jobs/digits_cluster.toml jobs/pbs.sh
#PBS -N hpo
#PBS -l select=16:ncpus=64:ngpus=4:mpiprocs=4
#PBS -l walltime=08:00:00
#PBS -j oe

cd "$PBS_O_WORKDIR" || exit 1
# What your site needs comes here, for example: module load openmpi
set -uo pipefail  # not before: a site's own lines may ask for variables that are not set
export PATH="$PWD/.venv/bin":"$PATH"

# qdel signals `hpo run`, too, which stops in good order. Before the time limit it does so by itself.
cancelled=
trap 'cancelled=1' TERM
hpo run "$file" --ranks "$(wc -l < "$PBS_NODEFILE")"
code=$?
left=$((${left:-20} - 1))
if ((code == 75 && left > 0)) && [[ -z $cancelled ]]; then
    qsub -v "file=$file,left=$left" jobs/pbs.sh
fi
exit "$code"
