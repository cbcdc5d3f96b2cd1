# Does with the Elixir writer what the lines on standard input say; test_dump_writers.py writes them.
Code.require_file("../../../parity/writers/lockstep_dump.ex", __DIR__)

defmodule Vectors do
  def unhex("-"), do: ""
  def unhex(text), do: Base.decode16!(text, case: :lower)

  def sizes("-"), do: []
  def sizes(text), do: text |> String.split(",") |> Enum.map(&String.to_integer/1)

  def act(["meta", key, value], {about, dump}),
    do: {Map.put(about, unhex(key), unhex(value)), dump}

  def act(["open", path], {about, _}), do: {%{}, LockstepDump.start(unhex(path), about)}

  def act(["tensor", name, dtype, shape, data], {about, dump}) do
    LockstepDump.add(dump, unhex(name), unhex(data), sizes(shape), dtype)
    {about, dump}
  end

  def act(["floats", name], {about, dump}) do
    LockstepDump.add(dump, unhex(name), [0.1, -0.5], {2})
    {about, dump}
  end

  def act(["close"], {about, dump}) do
    LockstepDump.close(dump)
    {about, nil}
  end

  def act(["drop"], {about, dump}) do
    LockstepDump.discard(dump)
    {about, nil}
  end

  def tried(line, state) do
    act(String.split(line, " "), state)
  rescue
    error ->
      IO.puts("refused " <> Exception.message(error))
      state
  end
end

IO.stream() |> Stream.map(&String.trim_trailing(&1, "\n")) |> Enum.reduce({%{}, nil}, &Vectors.tried/2)
