"""What is replaced comes back as it was, whatever happens meanwhile."""

import pytest

from sedge_edge.backends.replaced import replaced


class Base:
    @classmethod
    def inherited(cls) -> str:
        return f"{cls.__name__}'s"


class Owner(Base):
    @staticmethod
    def own() -> str:
        return "own"


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_what_was_there_comes_back_also_after_an_error(name: str) -> None:
    before, said = dict(vars(Owner)), getattr(Owner, name)()
    with pytest.raises(ValueError, match="meanwhile"), replaced(Owner, name, lambda: "other"):
        assert getattr(Owner, name)() == "other"
        raise ValueError("meanwhile")
    assert getattr(Owner, name)() == said
    assert dict(vars(Owner)) == before
