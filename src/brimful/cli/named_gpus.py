"""What was typed for a GPU or a machine, and a line that says which was taken for it."""

from brimful.cli.parsing import note_once
from brimful.cost.money import listed_prices
from brimful.hardware.cluster import Cluster, spelled
from brimful.hardware.gpus import check_gpu
from brimful.hardware.instances import cloud_of, listed_name, network_of_instances
from brimful.hardware.names import machine_of, split_counts


def noted_cluster(typed: str, cluster: Cluster) -> Cluster:
    """Return a cluster as it is; where its name was typed in another way, say which was taken."""
    machine = machine_of(typed)
    if machine or split_counts(typed).gpu != cluster.name or cluster.name not in typed.lower():
        cloud = cloud_of(machine)
        is_told = not cloud or listed_name(machine) in listed_prices()
        prices = "" if is_told else f"; prices are not {cloud}'s, which --prices tells"
        if (between := network_of_instances(machine)) and between == cluster.network:
            prices = f", {between} between them{prices}"
        note_once(
            f"--gpus {spelled(cluster)} is taken for {typed!r} ({cluster.device.description})"
            f"{prices}"
        )
    return cluster


def gpu_from(typed: str) -> str:
    """Resolve the name of one GPU; where it was typed in another way, say which was taken."""
    gpu = check_gpu(typed)
    if typed.strip().lower() != gpu:
        note_once(f"{gpu} is taken for {typed.strip()!r}")
    return gpu
