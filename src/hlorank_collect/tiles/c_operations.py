"""Element types, elementwise operations and constants of HLO in C."""

from __future__ import annotations

import math

from hlorank.hlo.hlo_pb2 import LiteralProto, ShapeProto
from hlorank_collect.tiles.kernel import dtype_of

C_TYPES = {"bool": "unsigned char", "int32": "int", "uint32": "unsigned", "float32": "float"}
_ANY = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "negate": "-{0}", "copy": "{0}",
    "maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}", "select": "{0} ? {1} : {2}",
    "clamp": "{1} < {0} ? {0} : {1} > {2} ? {2} : {1}",
}  # fmt: skip
_OF_TYPE = {
    "float32": {
        "divide": "{0} / {1}", "remainder": "fmodf({0}, {1})", "power": "powf({0}, {1})", "abs": "fabsf({0})",
        "exponential": "exp_f32({0})", "exponential-minus-one": "expm1f({0})", "log": "logf({0})",
        "log-plus-one": "log1pf({0})", "sqrt": "sqrtf({0})", "rsqrt": "1.0f / sqrtf({0})", "cbrt": "cbrtf({0})",
        "tanh": "tanh_f32({0})", "logistic": "1.0f / (1.0f + exp_f32(-{0}))", "erf": "erff({0})", "sine": "sinf({0})",
        "cosine": "cosf({0})", "floor": "floorf({0})", "ceil": "ceilf({0})", "round-nearest-even": "rintf({0})",
        "sign": "(float)(({0} > 0) - ({0} < 0))",
    },
    "int32": {"abs": "abs({0})", "not": "~{0}", "sign": "({0} > 0) - ({0} < 0)"},
    "uint32": {
        "not": "~{0}", "shift-left": "{1} < 32 ? {0} << {1} : 0", "shift-right-logical": "{1} < 32 ? {0} >> {1} : 0",
    },
    "bool": {"not": "!{0}", "maximum": "{0} | {1}", "minimum": "{0} & {1}"},
}  # fmt: skip
_BITS = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}

PRELUDE = """\
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* gcc cannot vectorize calls of expf and tanhf of libm. */
static inline float exp_f32(float x) {
  x = x > 88.3f ? 88.3f : x < -87.3f ? -87.3f : x;
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int bits = ((int)n + 127) << 23;
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

static inline float tanh_f32(float x) {
  return fabsf(x) < 0.02f ? x - x * x * x / 3 : 1.0f - 2.0f / (exp_f32(2.0f * x) + 1.0f);
}
"""


def c_type(shape: ShapeProto) -> str:
    """Return the C type of a shape's elements."""
    return C_TYPES[dtype_of(shape).name]


def template(opcode: str, shape: ShapeProto) -> str | None:
    """Return an elementwise operation as a C expression of its operands {0}, {1}, {2}; None for other operations."""
    name = dtype_of(shape).name
    known = {**(_ANY if name != "bool" else {"copy": "{0}", "select": _ANY["select"]}), **_OF_TYPE[name]}
    return (known if name == "float32" else {**known, **_BITS}).get(opcode)


def _literal(value: float | int | bool) -> str:
    if not isinstance(value, float):
        return f"({int(value)})"
    if math.isnan(value):
        return "NAN"
    return f"({'-' * (value < 0)}INFINITY)" if math.isinf(value) else f"({value.hex()}f)"


def literal_values(literal: LiteralProto) -> list[str]:
    """Return the elements of a constant as C literals, in the order of its layout."""
    name = {"bool": "preds", "int32": "s32s", "uint32": "u32s", "float32": "f32s"}[dtype_of(literal.shape).name]
    return [_literal(value) for value in getattr(literal, name)]
