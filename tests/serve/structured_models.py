"""The objects that the clients of structured_clients.py ask for.

Their texts are short and they take no undeclared keys, because the model of the tests would otherwise write verses to the end."""

import datetime
import enum
import uuid
from typing import Annotated, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Colour(str, enum.Enum):
    RED = "red"
    GREEN = "light 'green'"


class Address(Closed):
    street: Annotated[str, Field(max_length=12)]
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{4}$")]


class Person(Closed):
    name: Annotated[str, Field(min_length=2, max_length=12)]
    age: Annotated[int, Field(ge=0, le=120)]
    address: Address
    tags: Annotated[list[Literal["a", "b c"]], Field(max_length=3)]
    nick: Optional[Annotated[str, Field(max_length=6)]]


class Settings(Closed):
    """Every field has a "default"."""

    level: Literal[1, 2, 3] = 2
    colour: Colour = Colour.RED
    on: bool = False
    note: Optional[Annotated[str, Field(max_length=6)]] = None


class Event(Closed):
    day: datetime.date
    at: datetime.datetime
    id: uuid.UUID
    colour: Colour


class Circle(Closed):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0, lt=100, multiple_of=0.25)]


class Square(Closed):
    kind: Literal["square"]
    side: Annotated[int, Field(ge=1, le=9)]


class Drawing(Closed):
    shapes: Annotated[list[Union[Circle, Square]], Field(min_length=1, max_length=2)]
    main: Annotated[Union[Circle, Square], Field(discriminator="kind")]
    ink: Union[Annotated[int, Field(ge=-5, le=5)], Colour, None]


class Tree(Closed):
    value: Annotated[int, Field(multiple_of=5, ge=-100, le=100)]
    children: Annotated[list["Tree"], Field(max_length=1)]


class Open(BaseModel):
    """Takes undeclared keys, as most models of users."""

    name: Annotated[str, Field(min_length=2, max_length=12)]
    size: Annotated[int, Field(ge=0, le=9)]


class AnyObject(BaseModel):
    model_config = ConfigDict(extra="allow")


MODELS = [Person, Settings, Event, Drawing, Tree]
