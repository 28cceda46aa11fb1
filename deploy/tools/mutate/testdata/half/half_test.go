package half

import "testing"

func TestCount(t *testing.T) {
	for _, c := range [][2]int{{1, 1}, {8, 8}, {9, 8}} {
		if n, _ := Count(c[0]); n != c[1] {
			t.Error(c, n)
		}
	}
	Join("b", "a")
}
