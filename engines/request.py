"""What is asked for when an engine is compiled."""

from dataclasses import dataclass, field
from pathlib import Path

from ..core.dtypes import DType
from ..core.shapes import Profile
from .options import BuildOptions
from .plugin_nodes import PluginSetting
from .target import Target


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One engine to build.

    profile: the sizes of every input. folder: engines go to <folder>/engines, e.g. <bundle>/fp16. num_blocks: how
    many decoder blocks the graph has, 0 where it has none. precision: the type that its matrix products must run
    in; None takes it node by node from the graph. plugins: which blockforge operators run as plugins where the
    runtime takes them: "auto", "off" or names. more_profiles: further sizes that the engine is tuned for, each with its own
    kernels. cache: the folder of engines built before; None takes $BLOCKFORGE_CACHE, without which there is none.
    """

    model: Path
    target: Target
    profile: Profile
    folder: Path
    num_blocks: int = 0
    precision: DType | None = None
    options: BuildOptions = field(default_factory=BuildOptions)
    plugins: PluginSetting = "auto"
    more_profiles: tuple[Profile, ...] = ()
    cache: Path | None = None

    @property
    def asked(self) -> str:
        """What an error about this request says was asked."""
        return f"engine {self.target} of {self.model.name}"

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every profile, the first one first."""
        return (self.profile, *self.more_profiles)
