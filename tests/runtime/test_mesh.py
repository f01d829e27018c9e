"""Meshes of any number of hosts and slices."""

import random

import jax
import numpy as np
import pytest

from cdejax.runtime.mesh import arrange_devices, group_by_slice, local_mesh
from cdejax.training.sharding import make_mesh
from tests.devices import FakeGpu, gpu_hosts


@pytest.mark.parametrize("fsdp", [1, 2, 4, 8])
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_fsdp_stays_within_a_gpu_host_and_data_runs_through_the_hosts(hosts, fsdp):
    gpus = gpu_hosts(hosts)
    mesh = make_mesh(gpus, fsdp)
    assert dict(mesh.shape) == {"data": 8 * hosts // fsdp, "fsdp": fsdp}
    assert list(mesh.devices.flat) == gpus
    of_rows = [{gpu.process_index for gpu in row} for row in mesh.devices]
    assert of_rows == [{host} for host in range(hosts) for _ in range(8 // fsdp)]


def test_devices_of_a_slice_come_together_in_whatever_order_they_are_listed():
    gpus = gpu_hosts(4)
    mixed = random.Random(0).sample(gpus, len(gpus))
    found = make_mesh(mixed, 4).devices
    assert {frozenset(row) for row in found} != set(
        map(frozenset, arrange_devices(gpus, 4))
    )
    hosts = [gpu.slice_index for gpu in found.flat]
    assert hosts == sorted(hosts)
    assert set(found.flat) == set(gpus)
    assert [len(part) for part in group_by_slice(mixed)] == [8] * 4


def test_hosts_may_differ_in_size():
    gpus = gpu_hosts(3)[:20]
    mesh = make_mesh(gpus, 4)
    assert dict(mesh.shape) == {"data": 5, "fsdp": 4}
    assert all(len({gpu.slice_index for gpu in row}) == 1 for row in mesh.devices)


def test_a_host_without_a_slice_number_is_one_slice():
    devices = jax.devices()
    assert make_mesh(devices, 4).devices.tolist() == [devices[:4], devices[4:]]
    assert make_mesh(devices[2:5]).devices[:, 0].tolist() == devices[2:5]


@pytest.mark.parametrize(
    ("devices", "fsdp", "words"),
    [
        (gpu_hosts(1), 3, "is 3, which does not divide the 8 devices; set it to one of "
        "1, 2, 4, 8"),
        (gpu_hosts(2), 16, r"is 16, .* the 8 devices of each of the 2 slices .*; set it"
        " to one of 1, 2, 4, 8"),
        (gpu_hosts(3)[:20], 8, "is 8, .* the 4 and 8 devices .* one of 1, 2, 4$"),
    ],
)  # fmt: skip
def test_an_impossible_division_names_the_setting(devices, fsdp, words):
    with pytest.raises(ValueError, match=rf"^training\.fsdp {words}"):
        make_mesh(devices, fsdp)


def test_a_mesh_of_this_process_has_all_its_devices_in_order():
    assert local_mesh().devices.tolist() == jax.local_devices()
    assert local_mesh().axis_names == ("data",)


def test_chips_that_form_no_box_keep_their_order():
    """Of which JAX places none: three chips of four, in an L."""

    class Chip(FakeGpu):
        platform = "tpu"
        core_on_chip = 0

        @property
        def coords(self):
            return (self.id % 2, self.id // 2, 0)

    chips = [Chip(i, 0, 0, "tpu", "TPU v5p") for i in range(3)]
    np.testing.assert_array_equal(arrange_devices(chips)[:, 0], np.array(chips, object))
