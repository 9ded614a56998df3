"""Two views of a tiled floor: which patch of the second view shows the same as a patch of the first?

    A_t = diag(I ⊗ P_t⁻¹, R(ω·row), R(ω·column)),      s_ij = q_iᵀ A_i⁻¹ A_j k_j,      P_t: world → image of t's view

Tiles repeat, so that the appearance of a patch leaves many candidates; which one is right depends on the two cameras,
which differ in position, roll and focal length. All models receive the tiles and the direction of each patch in its own
camera. 2-D RoPE receives nothing more. "Rays as input" also receives every patch's ray (direction and moment) in the
frame of the first view, the usual way to give a network the cameras. With camera frames (PRoPE), attention itself
relates the views. One layer, 200 steps, 36 patches per view, new cameras and floors in the test.

    OMP_NUM_THREADS=1 python examples/two_views.py --out two_views.png          about 40 seconds

Results (three seeds, 200 pairs each; % of the patches whose match is in the second view):

    2-D RoPE                                   11.6 %   (11.2 to 11.9)
    2-D RoPE, rays as input                    66.4 %   (65.1 to 68.2)
    rays as input, another world               12.5 %   (6.3 to 23.9)
    camera frames: scores                      40.8 %   (39.0 to 43.5)
    camera frames: scores, values              67.0 %   (66.3 to 68.1)
    camera frames, another world               67.0 %   (66.3 to 68.1)

Rays as input work equally well while the world is the one used in training. In another world (rays relative to some
other origin, rotated), they mislead, and camera frames give the same result as before: the world is gauge.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import BLUE, GREY, ORANGE, arguments, bars, fit, keep, line, sheet
from joformer import CameraFrames, FixedFrames, JourneyAttention, positions, rotate

GRID, SAMPLES, DIM, HEADS = 6, 3, 64, 2
PATCHES, HEAD = GRID * GRID, DIM // HEADS
PLAIN, RAYS, SCORES, BOTH = (
    "2-D RoPE",
    "2-D RoPE, rays as input",
    "camera frames: scores",
    "camera frames: scores, values",
)
MOVED = {RAYS: "rays as input, another world", BOTH: "camera frames, another world"}


def look_at(eye: Tensor, target: Tensor, roll: Tensor) -> Tensor:
    """World to camera, (…, 4, 4): x to the right, y down, z from the eye to the target, then a roll about z."""
    forward = F.normalize(target - eye, dim=-1)
    right = F.normalize(torch.linalg.cross(forward, torch.tensor([0.0, 1.0, 0.0]).expand_as(forward)), dim=-1)
    down = torch.linalg.cross(forward, right)
    c, s = roll.cos()[..., None], roll.sin()[..., None]
    rotation = torch.stack((c * right + s * down, c * down - s * right, forward), -2)
    pose = torch.eye(4).repeat(*eye.shape[:-1], 1, 1)
    pose[..., :3, :3], pose[..., :3, 3] = rotation, -(rotation @ eye[..., None])[..., 0]
    return pose


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=generator)


class Pairs:
    """Two cameras above a floor z = 0 whose tiles repeat, what they see of it, and the inputs of a model."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        away = uniform(generator, -1.2, 1.2, count, 2, 2)
        eye = torch.cat((away, uniform(generator, 2.0, 3.0, count, 2, 1)), -1)
        target = F.pad(uniform(generator, -0.3, 0.3, count, 2, 2), (0, 1))
        self.extrinsics = look_at(eye, target, uniform(generator, -math.pi, math.pi, count, 2))
        focal = uniform(generator, 0.9, 1.6, count, 2)  # in widths of the image
        self.intrinsics = torch.diag_embed(torch.stack((focal, focal, torch.ones_like(focal)), -1))
        self.intrinsics[..., :2, 2] = 0.5
        size = GRID * SAMPLES
        at = (torch.arange(size) + 0.5) / size
        floor = self.seen(at)
        waves = torch.randn(count, 8, 2, generator=generator).round() * 2 * math.pi  # whole waves: tiles of 1 × 1
        phase = uniform(generator, 0, 2 * math.pi, count, 8)
        colour = (torch.einsum("cvijx,ckx->cvijk", floor, waves) + phase[:, None, None, None]).cos().mean(-1) * 2
        cut = colour.unflatten(3, (GRID, SAMPLES)).unflatten(2, (GRID, SAMPLES)).transpose(3, 4)
        self.images, self.tiles = colour, cut.flatten(4).flatten(2, 3)  # (count, 2, patches, samples)
        # Where the centre of each patch of the first view lies in the second.
        middle = (torch.arange(GRID) + 0.5) / GRID
        spot = F.pad(self.seen(middle)[:, 0].flatten(1, 2), (0, 2), value=0.0)
        spot[..., 3] = 1.0
        camera = torch.einsum("cij,cpj->cpi", self.extrinsics[:, 1], spot)[..., :3]
        pixel = torch.einsum("cij,cpj->cpi", self.intrinsics[:, 1], camera)
        cell = (pixel[..., :2] / pixel[..., 2:] * GRID).floor().long()
        self.visible = ((cell >= 0) & (cell < GRID)).all(-1) & (camera[..., 2] > 0)
        self.match = (cell[..., 1] * GRID + cell[..., 0]).masked_fill(~self.visible, -100)
        self.own = self.rays(middle).flatten(2, 3)
        self.place(torch.eye(4))

    def place(self, world: Tensor) -> None:
        """Gives the cameras in the frame of the first view, moved by `world`, as positions and as rays of patches."""
        extrinsics = self.extrinsics @ torch.linalg.inv(self.extrinsics[:, :1]) @ torch.linalg.inv(world)
        self.where = positions.cameras(extrinsics, (GRID, GRID), intrinsics=self.intrinsics, image=(1, 1))
        back = torch.linalg.inv(extrinsics)
        direction = torch.einsum("cvij,cvpj->cvpi", back[..., :3, :3], self.own)
        moment = torch.linalg.cross(back[..., None, :3, 3].expand_as(direction), direction)
        self.common = torch.cat((direction, moment), -1)

    def rays(self, at: Tensor) -> Tensor:
        """Directions in the camera's frame of the image's points, (count, 2, rows, columns, 3)."""
        rows, columns = torch.meshgrid(at, at, indexing="ij")
        pixels = torch.stack((columns, rows, torch.ones_like(rows)), -1)
        return torch.einsum("cvij,hwj->cvhwi", torch.linalg.inv(self.intrinsics), pixels)

    def seen(self, at: Tensor) -> Tensor:
        """The floor points (x, y) that the image's points show, (count, 2, rows, columns, 2)."""
        back = torch.linalg.inv(self.extrinsics)
        direction = torch.einsum("cvij,cvhwj->cvhwi", back[..., :3, :3], self.rays(at))
        eye = back[..., None, None, :3, 3]
        return (eye - direction * eye[..., 2:] / direction[..., 2:])[..., :2]


class Matcher(nn.Module):
    """One layer of attention over both views, then a score for each pair of patches: q_iᵀ A_i⁻¹ A_j k_j."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.frames = CameraFrames(HEAD) if name in (SCORES, BOTH) else FixedFrames(HEAD, axes=2, base=100.0)
        self.embed = nn.Sequential(nn.Linear(SAMPLES**2 + 9, 128), nn.GELU(), nn.Linear(128, DIM))
        self.attention = JourneyAttention(DIM, HEADS, transport="scores" if name == SCORES else "both")
        self.norm, self.last = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 128), nn.GELU(), nn.Linear(128, DIM))
        self.match = nn.Linear(DIM, 2 * DIM, bias=False)

    def forward(self, pairs: Pairs, rows: Tensor) -> Tensor:
        rays = pairs.common[rows] if self.name == RAYS else torch.zeros(len(rows), 2, PATCHES, 6)
        x = self.embed(torch.cat((pairs.tiles[rows], pairs.own[rows], rays), -1).flatten(1, 2))
        where = pairs.where[rows] if self.name in (SCORES, BOTH) else positions.grid(GRID, GRID).repeat(2, 1)
        frames = self.frames(where, x)
        x = x + self.attention(self.norm(x), frames)
        x = x + self.mlp(x)
        q, k = self.match(self.last(x)).unflatten(-1, (2, HEADS, HEAD)).unbind(2)
        q, k = rotate(q, frames.dual)[:, :PATCHES], rotate(k, frames)[:, PATCHES:]
        return torch.einsum("bihd,bjhd->bij", q, k) / DIM**0.5

    def loss(self, pairs: Pairs, rows: Tensor) -> Tensor:
        return F.cross_entropy(self(pairs, rows).flatten(0, 1), pairs.match[rows].flatten())


def main() -> None:
    given = arguments(__doc__, __file__, steps=200)
    right = {name: [] for name in (PLAIN, RAYS, MOVED[RAYS], SCORES, BOTH, MOVED[BOTH])}
    for seed in range(given.seed, given.seed + given.seeds):
        generator = torch.Generator().manual_seed(seed)
        train, test, chosen = Pairs(3200, generator), Pairs(200, generator), {}
        turn = look_at(torch.randn(3, generator=generator), torch.randn(3, generator=generator), torch.tensor(1.0))
        for name in (PLAIN, RAYS, SCORES, BOTH):
            torch.manual_seed(seed)
            model = Matcher(name)
            batch = torch.randint(3200, (given.steps, 16), generator=torch.Generator().manual_seed(seed))
            fit(model, lambda step, m=model, t=train, b=batch: m.loss(t, b[step]), steps=given.steps, lr=5e-3)
            for world in (torch.eye(4), turn) if name in MOVED else (torch.eye(4),):
                test.place(world)
                with torch.no_grad():
                    found = model(test, torch.arange(200)).argmax(-1)
                said = name if torch.equal(world, torch.eye(4)) else MOVED[name]
                right[said].append(100 * (found == test.match)[test.visible].float().mean().item())
                chosen[said] = found
    print(f"which of {PATCHES} patches, % right (chance {100 / PATCHES:.1f}):")
    for name, values in right.items():
        line(name, values)
    picture(test, chosen, right, given.out)


def picture(test: Pairs, chosen: dict, right: dict, out) -> None:
    figure = sheet(10, 7)
    above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1))
    pair = int(test.visible.sum(1).argmax())
    shown = test.visible[pair].nonzero().flatten()[::4]
    panels = (("first view", None), (f"second view: {BOTH}", BOTH), (f"second view: {PLAIN}", PLAIN))
    for axes, (title, name) in zip(above.subplots(1, 3), panels, strict=True):
        axes.imshow(test.images[pair, 0 if name is None else 1].numpy(), cmap="Greys", extent=(0, GRID, GRID, 0))
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(GRID + 1), [])
        axes.set_yticks(range(GRID + 1), [])
        for n, patch in enumerate(shown):
            at = int(patch if name is None else chosen[name][pair, patch])
            wrong = name is not None and at != int(test.match[pair, patch])
            style = {"boxstyle": "circle", "fc": "#c03030" if wrong else ORANGE}
            spot = at % GRID + 0.5, at // GRID + 0.5
            axes.text(*spot, str(n), color="white" if wrong else "black", ha="center", va="center", bbox=style)
    axes = below.subplots()
    bars(axes, right, [GREY, GREY, GREY, ORANGE, BLUE, BLUE], chance=round(100 / PATCHES, 1))
    axes.set_title("% of patches whose match is found; dots: seeds; red above: wrong", fontsize=9)
    keep(figure, out)


if __name__ == "__main__":
    main()
