"""What docs/cluster.md says is what the profile and the rules ask for."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def rules_with_gpu() -> set[str]:
    """By the profile, and by the rules' own resources."""
    profile = yaml.safe_load((ROOT / "slurm" / "profile.yaml").read_text())
    found = {rule for rule, resources in profile["set-resources"].items() if "gpu" in resources}
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^rule ", file.read_text(), flags=re.MULTILINE)[1:]:
            if re.search(r"^ +gpu=", rule, flags=re.MULTILINE):
                found.add(rule.split(":")[0])
    return found


def test_both_lists_name_every_rule_that_asks_for_a_gpu() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    places = (r"slurm_partition: gpu\n#     for (.+)\n", r"`gpu: 0` for ([^.]+)\.")
    for place in places:
        (listed,) = re.findall(place, text)
        assert set(re.findall(r"\w+", listed)) - {"and"} == rules_with_gpu()
