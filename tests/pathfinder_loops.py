"""Pathfinder one image after the other, in floating point and on whole images: the reference for the drawn blocks.

Pillow draws and reduces the lines, SciPy dilates them. DeadEnd is raised where a snake cannot begin or go on.
"""

import math
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw
from scipy.ndimage import grey_dilation

Point = tuple[int, int]


class DeadEnd(Exception):
    """A snake cannot go on."""


@dataclass
class Snake:
    start: Point
    pivot: Point
    angle: float
    line: np.ndarray
    last: np.ndarray  # the mask of the last paddle, which enters the others' one step late
    end: Point = (0, 0)


@dataclass
class Picture:
    pixels: np.ndarray
    label: int
    distance: float
    placed: int
    path: float


def pace(angle: float, distance: int) -> tuple[float, float]:
    """Sines of 30 bits, where sin(pi) is 0 and cos(pi / 3) is 1/2."""
    return tuple(distance * round(value * 2**30) / 2**30 for value in (math.sin(angle), math.cos(angle)))


def walk(place: Point, angle: float, distance: int) -> Point:
    down, right = pace(angle, distance)
    return math.ceil(place[0] + down), math.ceil(place[1] + right)


def reverse(angle: float) -> float:
    return angle + math.pi if angle < 0 else angle - math.pi


def disc(radius: int) -> np.ndarray:
    axis = np.arange(-radius, radius + 1)
    return axis[:, None] ** 2 + axis**2 <= radius**2


def radians(degrees: int) -> float:
    return degrees * math.pi / 180  # math.radians divides first, which is another number now and then


def small(image: np.ndarray, side: int) -> np.ndarray:
    resized = Image.fromarray(image).resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(resized).astype(np.float32) / np.float32(255)


def scaled(image: np.ndarray) -> np.ndarray:
    """Grey values of an image of whole numbers from 0 to its largest value; halves are rounded up."""
    return ((2 * 255 * image + image.max()) // (2 * image.max())).astype(np.uint8)


class Loops:
    """The generator for one design (`lra.tasks._pathfinder_snakes.Design`) and margin."""

    def __init__(self, design, margin: int, seed: int) -> None:
        self.design, self.margin, self.draws = design, margin, Random(seed)
        self.length, self.side = design.paddle_length, design.window
        self.known: dict[float, tuple[np.ndarray, np.ndarray]] = {}  # sprites by angle
        self.reach = self.length + math.ceil(design.paddle_thickness) + margin

    def paddle(self, place: Point, angle: float, side: int) -> tuple[np.ndarray, np.ndarray]:
        """The line and the mask of a paddle in a window."""
        sprite = 2 * self.reach + 1
        pictures = []
        for small_one in self.sprites(angle):
            wide = np.zeros((side + 2 * self.reach,) * 2, dtype=np.float32)
            wide[place[0] : place[0] + sprite, place[1] : place[1] + sprite] = small_one
            pictures.append(wide[self.reach : -self.reach, self.reach : -self.reach])
        return pictures[0], pictures[1]

    def sprites(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        if angle not in self.known:
            middle = 2 * self.reach
            image = Image.new("L", (2 * middle + 1,) * 2)
            # In floating point, where 120 degrees end one pixel further, as in the public generator.
            end = [math.ceil(middle + 2 * self.length * part(angle)) for part in (math.sin, math.cos)]
            width = round(2 * self.design.paddle_thickness)
            ImageDraw.Draw(image).line([(middle, middle), end[::-1]], fill=255, width=width)
            thin = np.asarray(image)
            thick = grey_dilation(thin, footprint=disc(2 * self.margin), mode="constant")
            self.known[angle] = small(thin, middle + 1), small(thick, middle + 1)
        return self.known[angle]

    def seen(self, angle: float) -> list[Point]:
        """Return the cells that must be free around the first paddle, relative to it."""
        most = self.length + self.margin
        _, mask = self.paddle((most + 1, most + 1), angle, 2 * most + 1)
        return [(int(y) - most, int(x) - most) for y, x in np.argwhere(mask == 1)]

    def place(self, mask: np.ndarray, angle: float) -> Point:
        """A random place where a snake can begin: its first paddle is free and ends, as its pivot, in the window."""
        most, side = self.length + self.margin, self.side
        wide = np.pad(mask, most)
        free = (np.max([wide[most + y :, most + x :][:side, :side] for y, x in self.seen(angle)], axis=0)) <= 0.3
        places = [tuple(place) for place in np.argwhere(free).tolist() if self.fits(tuple(place), angle)]
        if not places:
            raise DeadEnd
        return self.draws.choice(places)

    def pivot(self, place: Point, angle: float) -> Point:
        return walk(walk(place, angle, self.length), reverse(angle), self.length + self.margin)

    def fits(self, place: Point, angle: float) -> bool:
        ends = walk(place, angle, self.length), self.pivot(place, angle)
        return all(0 <= cell < self.side for end in ends for cell in end)

    def begin(self, place: Point, angle: float) -> Snake:
        if not self.fits(place, angle):
            raise DeadEnd
        line, mask = self.paddle(place, angle, self.side)
        return Snake(place, self.pivot(place, angle), angle, line, mask, place)

    def second(self, first: Point, around: float) -> Point:
        """Return the pixel at which the second snake begins."""
        down, right = pace(around, self.design.seed_distance)
        return round(first[0] + down), round(first[1] + right)

    def lit(self, line: np.ndarray, contrast: int) -> np.ndarray:
        """A line with a contrast in percent."""
        return np.rint(255 * line).astype(np.int64) * contrast

    def extend(self, snake: Snake, mask: np.ndarray) -> float:
        """Another paddle, the mask with the one before; how far it begins from that."""
        pivot = walk(snake.pivot, snake.angle, self.length + 2 * self.margin)
        wide = grey_dilation(mask, footprint=disc(self.margin), mode="constant")
        radius, odds = self.length + self.margin, {}
        for step in range(math.ceil(2 * math.pi * radius)):
            y, x = (pivot[0] + radius * math.sin(step / radius), pivot[1] + radius * math.cos(step / radius))
            if 0 <= y < self.side and 0 <= x < self.side:
                point = (int(y), int(x))
                angle = math.atan2(point[0] - pivot[0], point[1] - pivot[1])
                turn = abs(angle - snake.angle)
                turn = min(self.design.continuity * min(turn, 2 * math.pi - turn), math.pi / 2)
                odds[point] = angle, (1 - wide[point]) * math.cos(turn) ** 2
        if sum(odd for _, odd in odds.values()) < 1e-4:
            raise DeadEnd
        for _ in range(3):
            [point] = self.draws.choices(list(odds), [odd for _, odd in odds.values()])
            angle = odds[point][0]
            line, paddle_mask = self.paddle(point, reverse(angle), self.side)
            if (mask + paddle_mask).max() < 1.8:
                break
        else:
            raise DeadEnd
        np.maximum(mask, snake.last, out=mask)
        far = math.dist(point, snake.end)
        snake.pivot, snake.angle, snake.last, snake.end = pivot, angle, paddle_mask, point
        snake.line = np.maximum(snake.line, line)
        return far

    def pair(self) -> tuple[list[Snake], list[float], np.ndarray]:
        design = self.design
        mask = np.ones((self.side, self.side))
        mask[design.padding : -design.padding, design.padding : -design.padding] = 0
        edge = 2 * design.seed_distance
        angles = [radians(self.draws.randrange(-180, 180)) for _ in range(2)]
        first = tuple(self.draws.randrange(edge, self.side - edge) for _ in range(2))
        second = self.second(first, radians(self.draws.randrange(360)))
        snakes = [self.begin(place, angle) for place, angle in zip((first, second), angles, strict=True)]
        if (np.maximum(mask, snakes[0].last) + snakes[1].last).max() >= 1.8:
            raise DeadEnd
        paths = [0.0, 0.0]
        for _ in range(design.contour_length - 1):
            for number, snake in enumerate(snakes):
                paths[number] += self.extend(snake, mask)
        return snakes, paths, np.max([mask, *(snake.last for snake in snakes)], axis=0)

    def distractor(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The line of a short snake and the mask with it."""
        mask = mask.copy()
        angle = radians(self.draws.randrange(-180, 180))
        snake = self.begin(self.place(mask, angle), angle)
        for _ in range(self.design.distractor_length - 1):
            self.extend(snake, mask)
        return snake.line, np.maximum(mask, snake.last)

    def marker(self, place: Point) -> np.ndarray:
        axis = np.arange(2 * self.side)
        far = (axis[:, None] - 2 * place[0]) ** 2 + (axis - 2 * place[1]) ** 2
        return self.lit(small(np.uint8(255) * (far <= (2 * self.design.marker_radius) ** 2), self.side), 100)

    def picture(self) -> Picture:
        design = self.design
        while True:
            try:
                snakes, paths, mask = self.pair()
                break
            except DeadEnd:
                continue
        image = self.lit(np.maximum(snakes[0].line, snakes[1].line), design.contrast)
        placed = 0
        for _ in range(design.distractors):
            for _ in range(5):
                try:
                    line, mask = self.distractor(mask)
                except DeadEnd:
                    continue
                image, placed = np.maximum(image, self.lit(line, design.distractor_contrast)), placed + 1
                break
        label, origin = self.draws.randrange(2), self.draws.randrange(2)
        start, end = snakes[origin].start, snakes[origin if label else 1 - origin].end
        image = np.maximum(image, np.maximum(self.marker(start), self.marker(end)))
        return Picture(scaled(image), label, math.dist(start, end), placed, paths[origin])
