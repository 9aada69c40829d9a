import torch

from fedssl.rng import derive, numpy_rng, torch_rng


def test_a_draw_depends_on_every_part_of_its_purpose():
    seeds = {
        derive(0, 1, 2, "train"),
        derive(1, 1, 2, "train"),
        derive(0, 2, 1, "train"),
        derive(0, 1, 2, "views"),
    }
    assert len(seeds) == 4
    assert derive(0, 12, 3) != derive(0, 1, 23)


def test_draws_do_not_depend_on_what_was_drawn_before():
    first = torch.rand(3, generator=torch_rng(0, 5, "x"))
    torch.rand(100)
    torch_rng(0, 6, "x")
    assert torch.equal(first, torch.rand(3, generator=torch_rng(0, 5, "x")))
    assert numpy_rng(0, "p").random() == numpy_rng(0, "p").random()
