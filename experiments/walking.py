"""Simulated dynamics of a walking robot: gymnasium's Walker2d (MuJoCo, extra `robot`).

The 23 inputs of a frame are the 17 observations of gymnasium (height, pitch, six joint angles, nine
velocities) and 6 torques. The 9 targets are the changes of velocities until the next frame, 0.008 s later.
With `previous`, the inputs of the previous frame come first (46).

The policy is a gait: springs and dampers draw each joint to a sine of time, the left leg half a period later,
with smooth noise. Its parameters are drawn for each trajectory, which ends after a fall or 1,000 frames. One
seed determines all draws.
"""

from typing import Any, NamedTuple

import numpy as np

from measuring.store import ROOT

FRAMES, LONGEST = 200_000, 1_000
REST = np.array([-0.10, -0.07, 0.36])  # thigh, leg, foot, in radians
SWING = np.array([0.48, 0.07, 0.07])
LAG = np.array([0.0, 1.2, 2.2])
DAMPING = 0.029
BALANCE = np.array([-0.46, -0.10])  # of the thighs, for pitch and its velocity
SMOOTHING = 0.8  # correlation of the noise between frames
CACHE = ROOT / ".cache"


class Walk(NamedTuple):
    """Frames of all trajectories in order; `first` marks the first frame of each."""

    X: np.ndarray  # [N, 23]
    Y: np.ndarray  # [N, 9]
    first: np.ndarray  # [N], bool

    def with_previous(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs [n, 46] and targets [n, 9] of the frames with a previous frame."""
        later = np.flatnonzero(~self.first)
        return np.concatenate([self.X[later - 1], self.X[later]], axis=1), self.Y[later]


def load(frames: int = FRAMES, seed: int = 0) -> Walk:
    """Load at least `frames` frames, which are simulated once and stored in a file."""
    path = CACHE / f"walker2d-{frames}-{seed}.npz"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        walk = simulate(frames, seed)
        np.savez_compressed(path, X=walk.X, Y=walk.Y, first=walk.first)
    with np.load(path) as found:
        return Walk(found["X"], found["Y"], found["first"])


def simulate(frames: int, seed: int) -> Walk:
    """Simulate trajectories with at least `frames` frames. Raises ImportError without gymnasium."""
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError("the walking data needs gymnasium: pip install 'stochgp[robot]'") from error
    env: Any = gymnasium.make("Walker2d-v5", max_episode_steps=LONGEST)
    X, Y, first, trajectory = [], [], [], 0
    while len(X) < frames:
        generator = np.random.default_rng((seed, trajectory))
        gait, noise = _gait(generator), np.zeros(6)
        state, _ = env.reset(seed=int(generator.integers(2**31)))
        for frame in range(LONGEST):
            noise = SMOOTHING * noise + gait["noise"] * generator.normal(size=6)
            torque = np.clip(_torque(state, frame, gait) + noise, -1, 1).astype(np.float32)
            after, _, fallen, over, _ = env.step(torque)
            X.append(np.concatenate([state, torque]))
            Y.append(after[8:] - state[8:])
            first.append(frame == 0)
            state = after
            if fallen or over:
                break
        trajectory += 1
    env.close()
    return Walk(np.asarray(X, np.float32), np.asarray(Y, np.float32), np.asarray(first))


def _gait(generator: np.random.Generator) -> dict[str, float]:
    """Draw the parameters of a trajectory."""
    return {
        "frequency": generator.uniform(1.8, 2.3),  # steps per second
        "step": generator.uniform(0.7, 1.2),
        "spring": generator.uniform(1.1, 1.7),
        "noise": generator.uniform(0.01, 0.1),
        "phase": generator.uniform(0, 2 * np.pi),
    }


def _torque(state: np.ndarray, frame: int, gait: dict[str, float]) -> np.ndarray:
    """Return torques that draw joints to the gait and keep the body upright."""
    angle = 2 * np.pi * gait["frequency"] * 0.008 * frame + gait["phase"]
    wanted = [REST + gait["step"] * SWING * np.sin(angle + side - LAG) for side in (0.0, np.pi)]
    joints, rates, pitch, turning = state[2:8], state[11:17], state[1], state[10]
    torque = gait["spring"] * (np.concatenate(wanted) - joints) - DAMPING * rates
    torque[[0, 3]] += BALANCE @ (pitch, turning)
    return torque
