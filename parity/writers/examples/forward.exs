# A forward pass that dumps its taps as it goes: elixir forward.exs out.safetensors
Code.require_file("../lockstep_dump.ex", __DIR__)

defmodule Forward do
  @vocabulary 5
  @width 4
  @eps 1.0e-6

  def table(i), do: for(j <- 0..(@width - 1), do: (rem(7 * i + 3 * j, 11) - 5) / 8)
  def gains, do: for(j <- 0..(@width - 1), do: 1 + j / 4)
  def head(i), do: for(j <- 0..(@width - 1), do: (rem(5 * i + 2 * j, 7) - 3) / 4)

  def norm(row) do
    scale = 1 / :math.sqrt(dot(row, row) / @width + @eps)
    Enum.zip_with(row, gains(), fn x, gain -> x * scale * gain end)
  end

  def linear(row), do: for(i <- 0..(@vocabulary - 1), do: dot(row, head(i)))

  def dot(left, right), do: Enum.zip_with(left, right, &(&1 * &2)) |> Enum.sum()

  def forward(tokens, trace) do
    rows = Enum.map(tokens, &table/1)
    trace.("model.embed_tokens", rows)
    rows = Enum.map(rows, &norm/1)
    trace.("model.norm", rows)
    rows = Enum.map(rows, &linear/1)
    trace.("logits", rows)
    rows
  end
end

[path] = System.argv()
tokens = [3, 1, 4, 1]

LockstepDump.run(path, [backend: "elixir", dtype: "float32", tokens: tokens], fn dump ->
  trace = fn step ->
    fn name, rows ->
      shape = {1, length(rows), length(hd(rows))}
      LockstepDump.add(dump, step <> name, List.flatten(rows), shape)
    end
  end

  last = List.last(Forward.forward(tokens, trace.("")))
  decoded = Enum.find_index(last, &(&1 == Enum.max(last)))
  Forward.forward([decoded], trace.("step.1/"))
  LockstepDump.say(dump, "decoded", [decoded])
end)
