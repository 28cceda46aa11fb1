package quota

import "testing"

func TestSizesAndParts(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "4096": 4096, "4 GiB": 4 << 30, "4GiB": 4 << 30, "1.5 GiB": 3 << 29,
		"80 GB": 80e9, "512 MiB": 512 << 20, "7 B": 7} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "4 gib", "-1", "4 GiB 2", "1e30 GiB", "nan", "10000000000 GiB", "1.2.3"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %d bytes", text, got)
		}
	}
	for text, want := range map[string]Part{"0.3": .3, "30 %": .3, "30%": .3, "1": 1, "12.5 %": .125} {
		var got Part
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "a third", "30 % 1"} {
		var got Part
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is a part: %v", text, got)
		}
	}
}
