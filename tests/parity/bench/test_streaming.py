"""The disk's rate, by law."""

from lockstep.parity.bench import streaming


def test_a_file_of_less_than_a_piece_has_a_rate(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SECONDS", 0.01)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert streaming.disk_rate([tmp_path / "model.safetensors"]) > 0
