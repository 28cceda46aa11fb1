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

func TestLimit(t *testing.T) {
	if limit < 2 || limit > 3.5 || (*steps)[0] != 4 {
		t.Error(limit, *steps)
	}
}
