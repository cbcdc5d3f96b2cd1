# Write a Lockstep trace from Elixir: copy this file into your port. No dependencies.
#
#     LockstepDump.run("port.safetensors", [dtype: "float32", tokens: [1, 2]], fn dump ->
#       LockstepDump.add(dump, "model.layers.0.mlp", values, {1, 2, 64})           # a flat list, or
#       LockstepDump.add(dump, "logits", Nx.to_binary(x), Nx.shape(x), "BF16")     # a binary
#     end)
#     # Only now does the file appear; after an error nothing does.
#
# `dtype` of the trace is what your port computes in, that of a tensor is what its bytes are. Tensors
# are written as they come, so memory stays bounded. A dump may be handed to any process; what defn
# code computes must leave it before it can be added. The format: docs/parity/dump-format.md.
defmodule LockstepDump do
  @sizes %{
    "F64" => 8, "F32" => 4, "F16" => 2, "BF16" => 2, "I64" => 8, "I32" => 4,
    "I16" => 2, "U16" => 2, "I8" => 1, "U8" => 1, "BOOL" => 1
  }

  @doc "Run a function with a new dump, and put the file in place if it ends well."
  def run(path, about, function) do
    dump = start(path, about)

    try do
      result = function.(dump)
      close(dump)
      result
    after
      discard(dump)
    end
  end

  @doc "Begin a trace. `about` is said of the whole: a keyword list or a map; lists become JSON."
  def start(path, about \\ []) do
    unique = "#{System.pid()}-#{System.unique_integer([:positive])}"
    bodies = "#{path}.#{unique}.bodies.tmp"
    names = MapSet.new(["", "__metadata__"])
    File.touch!(bodies)

    # A raw file belongs to the process that opens it, so that one alone may write to it.
    {:ok, pid} =
      Agent.start(fn ->
        body = File.open!(bodies, [:write, :raw, :delayed_write])
        %{body: body, about: %{}, header: [], size: 0, names: names}
      end)

    dump = %{pid: pid, path: path, bodies: bodies, whole: "#{path}.#{unique}.whole.tmp"}
    Enum.each(about, fn {key, value} -> say(dump, key, value) end)
    dump
  end

  @doc "Add to what is said of the whole what is known only later, such as `decoded`."
  def say(dump, key, value) do
    {key, value} = {quoted(to_string(key)), quoted(said(value))}
    Agent.update(dump.pid, &put_in(&1.about[key], value))
  end

  @doc "Append one tensor: a flat list of numbers, or a little-endian binary, row by row."
  def add(dump, name, values, shape, dtype \\ "F32") do
    sizes = if is_tuple(shape), do: Tuple.to_list(shape), else: shape
    item = @sizes[dtype] || raise ArgumentError, "#{name}: no dtype is called #{dtype}"
    data = bytes(values, dtype)
    expected = Enum.product([item | sizes])

    if byte_size(data) != expected or Enum.any?(sizes, &(&1 < 0)) do
      what = "#{byte_size(data)} bytes, but #{said(sizes)} of #{dtype} takes #{expected}"
      raise ArgumentError, "#{name}: #{what}"
    end

    begun = ["," <> quoted(name), ":{\"dtype\":\"#{dtype}\",\"shape\":", said(sizes)]
    added = Agent.get_and_update(dump.pid, &append(&1, name, data, begun), :infinity)
    added == :ok || raise ArgumentError, "tensor '#{name}' was written already, or is no name"
    :ok
  end

  @doc "Put header and tensors together under the final name."
  def close(dump) do
    say(dump, "format", "lockstep-trace")
    say(dump, "version", "1")
    header = Agent.get(dump.pid, &finished/1, :infinity)
    header = header <> String.duplicate(" ", rem(8 - rem(byte_size(header), 8), 8))

    File.open!(dump.whole, [:write, :raw], fn out ->
      :ok = :file.write(out, [<<byte_size(header)::64-little>>, header])
      {:ok, _} = :file.copy(dump.bodies, out)
      :ok = :file.sync(out)
    end)

    File.rename!(dump.whole, dump.path)
    discard(dump)
  end

  @doc "Give up: remove what was collected so far. Safe to call twice."
  def discard(dump) do
    if Process.alive?(dump.pid), do: Agent.stop(dump.pid)
    Enum.each([dump.bodies, dump.whole], &File.rm/1)
  end

  defp append(state, name, data, begun) do
    if MapSet.member?(state.names, name) do
      {:used, state}
    else
      :ok = :file.write(state.body, data)
      stop = state.size + byte_size(data)
      header = [state.header, begun, ",\"data_offsets\":[#{state.size},#{stop}]}"]
      {:ok, %{state | header: header, size: stop, names: MapSet.put(state.names, name)}}
    end
  end

  defp finished(state) do
    :ok = :file.close(state.body)
    pairs = Enum.map_join(state.about, ",", fn {key, value} -> key <> ":" <> value end)
    IO.iodata_to_binary(["{\"__metadata__\":{", pairs, "}", state.header, "}"])
  end

  # Elixir's floats are finite: NaN and infinities come in a binary, as Nx.to_binary gives it.
  defp bytes(values, _dtype) when is_binary(values), do: values
  defp bytes(values, "F32"), do: for(x <- values, into: <<>>, do: <<x::float-32-little>>)
  defp bytes(values, "F64"), do: for(x <- values, into: <<>>, do: <<x::float-64-little>>)
  defp bytes(_, dtype), do: raise(ArgumentError, "a list cannot be written as #{dtype}: give bytes")

  defp said(values) when is_list(values), do: "[" <> Enum.map_join(values, ", ", &to_string/1) <> "]"
  defp said(value), do: to_string(value)

  # Text as a JSON string.
  defp quoted(text) do
    String.valid?(text) || raise ArgumentError, "#{inspect(text)} is no UTF-8"
    "\"" <> for(<<letter::utf8 <- text>>, into: "", do: escaped(letter)) <> "\""
  end

  defp escaped(letter) when letter in [?", ?\\], do: <<?\\, letter>>
  defp escaped(letter) when letter < 0x20, do: "\\u00" <> Base.encode16(<<letter>>)
  defp escaped(letter), do: <<letter::utf8>>
end
