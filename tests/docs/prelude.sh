# What takes the place of commands of the pages. Commands that never end, take hours, or repeat others, do nothing;
# experiments have one method. Sweeps start no processes, as tests/runs/test_sweeps.py does. The server of hlorank and
# the worker of the queue are waited for.
make() { case $1 in ui | test) ;; *) command make "$@" ;; esac; }
python() {
  set -- "${@/n_trials=50/n_trials=2}"
  set -- "${@/ensemble.folds=5/ensemble.folds=2}"
  set -- "${@/launcher=joblib/launcher=basic}"
  set -- "${@/hydra.launcher.n_jobs=*/hydra.verbose=false}"
  case $1 in benchmarks/*) ;; *) command python "${@/model.blocks=2,3,4/model.blocks=2}" ;; esac
}
hlorank() {
  case $1 in
    collect) ;;
    autotune) command hlorank "$@" --allow-busy --rounds 4 ;;
    serve)
      setsid hlorank "$@" > server.log 2>&1 &
      trap "kill -- -$!" EXIT
      command curl -s --retry 120 --retry-delay 1 --retry-connrefused http://127.0.0.1:5002/ping || cat server.log ;;
    *) command hlorank "$@" ;;
  esac
}
curl() { command curl --fail-with-body "$@"; }
pip() { command python -m pip install -q --no-build-isolation --no-deps --no-index -t site "${@: -1}"; }
mlflow() { :; }
dvc() {
  case "$*" in *experiment=kaggle_6* | *"-n short" | *"-n synthetic") return ;; esac
  if [ "$1 $2" = "exp run" ] && [[ "$*" != *pipeline.methods=* ]]; then set -- "$@" -S 'pipeline.methods=[gst]'; fi
  command dvc "$@"
  if [ "$1 $2" = "queue start" ]; then
    while command dvc queue status | grep -Eq 'Queued|Running'; do sleep 10; done
    ! command dvc queue status | grep Failed
  fi
}
