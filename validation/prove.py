"""The long evidence: runs what this version claims and writes what came out, bar or no bar.

``python validation/prove.py [--part NAME] [--quick] [--seed N] [--out DIR [--dirty]]``

Evidence names the commit that it was made at, so the sources must be that commit's.
"""

import argparse
import datetime as dt
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from brimful.process.library_output import quiet_libraries
from brimful.process.versions import versions

quiet_libraries()

from aged import aged  # noqa: E402
from evidence import EVIDENCE_SCHEMA, PARTS, Evidence, Part, read_evidence, write_evidence  # noqa: E402
from provenance import Tree, Watch, provenance, tree  # noqa: E402
from tables import summary_text, update_readme  # noqa: E402

HERE = Path(__file__).parent
_MODULES: dict[Part, str] = {
    "predicted_vs_simulated": "predicted_part",
    "simulated_vs_measured": "measured_part",
    "step_time": "timed_part",
    "resume": "killed_part",
    "pretend_examples": "examples_part",
    "published": "published_part",
    "published_predicted": "published_predicted_part",
    "parity": "parity_part",
    "techniques": "techniques_part",
    "quality": "quality_part",
    "hf_trainer": "peers_part",
    "deepspeed": "deepspeed_part",
    "deepspeed_simulated": "deepspeed_simulated_part",
    "deepspeed_predicted": "deepspeed_predicted_part",
    "parallel_parity": "parallel_part",
    "ranks": "ranks_part",
    "reshard": "reshard_part",
    "lost_workers": "lost_part",
    "precision": "precision_part",
    "recipes": "recipes_part",
    "bubbles": "bubbles_part",
    "routing": "routing_part",
    "rehearsals": "rehearsals_part",
    "mixtures": "mixtures_part",
    "offload": "offload_part",
    "dpo": "dpo_part",
    "ladder": "ladder_part",
    "watched": "watched_part",
    "packages": "packages_part",
    "exporters": "exporters_part",
    "scale": "scale_part",
    "scale_experts": "scale_experts_part",
    "moonshot": "moonshot_part",
    "fuzz": "fuzz_part",
    "soak": "soak_part",
    "laws": "laws_part",
    "reserved": "reserved_part",
    "plans_hold": "plans_hold_part",
    "small_spaces": "small_spaces_part",
    "products": "products_part",
    "architectures": "architectures_part",
    "programs": "programs_part",
    "megatron_records": "megatron_records_part",
    "bridge_speeds": "bridge_speeds_part",
    "torchtitan": "torchtitan_part",
    "compiled": "compiled_part",
}
BARS_MISSED, REFUSED = 1, 2
NUM_NAMED = 3
"""Changed files that a refusal names."""


def main() -> int:
    """Make the parts that were asked for; the exit code says whether every bar is met."""
    args = _parser().parse_args()
    why_not = refusal(tree(), out=args.out, allowed=args.dirty)
    if why_not:
        print(f"prove.py: {why_not}", file=sys.stderr)
        return REFUSED
    parts = PARTS if args.part is None else (args.part,)
    ways = {"seed": args.seed, "quick": args.quick, "out": args.out, "complete": args.complete}
    made = [make(part, **ways) for part in parts]
    update_readme(args.out)
    for evidence in made:
        print(summary_text(evidence), end="\n\n")
    for line in aged(args.out, dt.datetime.now(dt.UTC).date(), versions()):
        print(f"warning: {line}", file=sys.stderr)
    return BARS_MISSED if any(evidence.summary.missed for evidence in made) else 0


def refusal(sources: Tree, *, out: Path, allowed: bool) -> str:
    """Say why no evidence is made from these sources; empty where it is.

    Args:
        sources: What there is.
        out: Folder of the evidence files.
        allowed: Whether ``--dirty`` was given.
    """
    is_here = out.resolve() == HERE.resolve()
    if allowed:
        away = "--dirty makes no evidence for validation/; give another folder with --out"
        return away if is_here else ""
    if not sources.changed:
        return ""
    named = ", ".join(sources.changed[:NUM_NAMED]) + ", ..." * (len(sources.changed) > NUM_NAMED)
    return (
        f"{len(sources.changed)} files are not as in commit {sources.commit[:10]} ({named}); "
        "commit them, or try things out with --dirty --out FOLDER"
    )


def _parser() -> argparse.ArgumentParser:
    today = dt.datetime.now(dt.UTC).strftime("%Y%m%d")
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--part", choices=PARTS, default=None, help="make this one only")
    add("--quick", action="store_true", help="a few cases of each part, about a minute in all")
    add("--seed", type=int, default=int(today), help="of the draws (default: today)")
    add(
        "--complete",
        action="store_true",
        help="keep the rows that hold, of a part that can, and make the rest",
    )
    add("--dirty", action="store_true", help="with --out elsewhere: though files are not committed")
    add("--out", type=Path, default=HERE, help="folder of the evidence files")
    return parser


def make(part: Part, *, seed: int, quick: bool, out: Path, complete: bool = False) -> Evidence[Any]:
    """Make one part and write it.

    Args:
        part: Which.
        seed: Of the draws.
        quick: A few cases only.
        out: Folder of the evidence file.
        complete: Keep what stands in it and holds; for a part that can.
    """
    watch, module = Watch(), import_module(_MODULES[part])
    if complete and hasattr(module, "complete"):
        result = module.complete(read_evidence(part, out), seed=seed)
    else:
        result = module.run(seed=seed, quick=quick)
    rows, summary, *calibration = result
    evidence: Evidence[Any] = Evidence(
        schema=EVIDENCE_SCHEMA,
        part=part,
        provenance=provenance(watch, seed=seed),
        summary=summary,
        calibration=calibration[0] if calibration else None,
        rows=tuple(rows),
    )
    write_evidence(evidence, out)
    return evidence


if __name__ == "__main__":
    sys.exit(main())
