# What a reader has: results, programs, dumps, a collection that the small pipeline omits, a committed dvc.lock.
touch .venv/.ready # as installed just now
python scripts/params.py
git init -q
git config user.name Somebody
git config user.email somebody@example.org
git add .
git commit -qm Start
make repro
cat > your_program.py <<'END'
import jax, numpy
def f(x):
    return x @ x
jax.jit(f)(numpy.ones((64, 64), "float32"))
END
cat > my_module.py <<'END'
def step(x, w):
    return (x @ w).reshape(4, -1)
END
XLA_FLAGS="--xla_dump_to=pb --xla_dump_hlo_as_proto" python your_program.py
XLA_FLAGS="--xla_dump_to=step --xla_dump_hlo_as_proto --xla_dump_hlo_pass_re=layout-assignment" python - <<'END'
import jax, my_module, numpy
jax.jit(my_module.step)(numpy.ones((64, 128), "float32"), numpy.ones((128, 128), "float32"))
END
cp step/*.jit_step.*.before_layout-assignment.hlo.pb program.hlo.pb
python - <<'END'
import jax, lzma, numpy
lowered = jax.jit(lambda x, w: jax.numpy.tanh(x @ w) @ w).lower(*(numpy.ones((n, 128), "float32") for n in (8, 128)))
with lzma.open("model.inference.hlo.txt.xz", "wt") as file:
    file.write(lowered.compiler_ir("hlo").as_hlo_text())
END
for stage in fetch featurize partition; do python -m hlorank.stages.$stage collection=layout/tpu-v3/random; done
python -m hlorank.stages.train collection=layout/tpu-v3/random method=analytical
git commit -qam Results
