from __future__ import annotations

import pytest

from hlorank_collect.modules.module_checks import check_measurable, check_memory
from hlorank_collect.program import SkippedError
from tests.hlorank_collect.modules.conftest import Parsed

ADD = """
%sum {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


PARAMETER = "%x = f32[4] parameter(0)"
DYNAMIC = "ROOT %d = f32[<=4] set-dimension-size(%x, %n)"


@pytest.mark.parametrize(
    ("body", "instruction", "reason"),
    [
        (f"{PARAMETER}\nROOT %r = f32[4] all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%sum", "r", "all-reduce"),
        (f"{PARAMETER}\nROOT %r = f32[8] all-gather(%x), replica_groups={{}}, dimensions={{0}}", "r", "all-gather"),
        (f"{PARAMETER}\nROOT %r = f32[4] collective-permute(%x), source_target_pairs={{{{0,1}}}}", "r", "permute"),
        (f"{PARAMETER}\nROOT %r = (f32[4], f32[8]) all-gather-start(%x), dimensions={{0}}", "r", "all-gather-start"),
        ("%x = f32[<=4] parameter(0)\nROOT %n = f32[<=4] negate(%x)", "x", "dynamic"),
        (f"{PARAMETER}\n%n = s32[] constant(2)\n{DYNAMIC}, dimensions={{0}}", "d", "dynamic"),
        ("%t = token[] parameter(0)\nROOT %r = () tuple()", "t", "token"),
        ("%t = (f32[4], token[]) parameter(0)\nROOT %r = () tuple()", "t", "token"),
        ("%p = s1[4] parameter(0)\nROOT %r = () tuple()", "p", "s1"),
    ],
)
def test_what_cannot_run_is_named(parsed: Parsed, body: str, instruction: str, reason: str) -> None:
    with pytest.raises(SkippedError, match=reason) as raised:
        check_measurable(parsed(f"{ADD}ENTRY %e {{\n{body}\n}}"))
    assert f"instruction {instruction}: " in str(raised.value)


def test_one_device_has_a_number(parsed: Parsed) -> None:
    numbers = "%r = u32[] replica-id()\n%p = u32[] partition-id()"
    check_measurable(parsed(f"ENTRY %e {{\n{numbers}\nROOT %s = u32[] add(%r, %p)\n}}"))


def test_memory_is_that_of_inputs_outputs_and_the_largest_product(parsed: Parsed) -> None:
    module = parsed("""ENTRY %e {
      %x = f32[100,10] parameter(0)
      %t = (bf16[10,5], s4[7]) parameter(1)
      %d = f32[100,100] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      %fused = f32[1000,1000] iota(), iota_dimension=0
      ROOT %r = f32[100,1] slice(%d), slice={[0:100],[0:1]}
    }""")
    needed = 4 * 1000 + 2 * 50 + 7 + 4 * 100 + 4 * 10_000
    check_memory(module, needed)
    with pytest.raises(SkippedError, match="instruction d "):
        check_memory(module, needed - 1)
