package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// The package half has mutants that survive, are killed, run forever or do not compile, and known and stale survivors.
func Example() {
	here, _ = os.Getwd()
	temp, _ = os.MkdirTemp("", "mutate")
	defer os.RemoveAll(temp)
	const half = "testdata/half/half.go"
	all, stale := candidates([]string{filepath.Join(here, half)}, map[survivor]string{
		{half, "if a > b {", "a > b is a >= b"}:      "what is the same may be swapped",
		{half, "if a > b {", "a > b is a == b"}:      "there is no such change",
		{"other.go", "if a > b {", "a > b is a < b"}: "another file is not looked at",
	})
	score(all)
	fmt.Println(stale)
	*sample = 3
	all, _ = candidates([]string{filepath.Join(here, "main.go"), filepath.Join(here, half), filepath.Join(here, "choice.go")}, nil)
	fmt.Println(filepath.Base(all[0].path), filepath.Base(all[1].path), filepath.Base(all[2].path))
	// Output:
	// testdata/half/half.go:11:36: l is *new(Limit) testdata/half/half.go:18:30: without 1 testdata/half/half.go:18:19:
	// .5 is 0.65 testdata/half/half.go:18:19: .5 is 0.35 testdata/half/half.go:18:27: 3 is 2
	// testdata/half/half.go:18:30: 1 is 2 testdata/half/half.go:18:30: 1 is 0 testdata/half/half.go:21:25: 6 is 7
	// testdata/half/half.go:21:25: 6 is 5 testdata/half/half.go:29:16: true is false testdata/half/half.go:37:9: a + b
	// is *new(string) testdata/half/half.go:34:7: a > b is a <= b testdata/half/half.go:35:3: without a, b = b, a
	// testdata/half/half.go:41:28: !false is *new(bool) testdata/half/half.go:41:29: false is true testdata/half: 50.0
	// %: 15 of 30 mutants were noticed, 2 of them by the time limit; 5 others do not compile altogether: 50.0 %: 15 of
	// 30 mutants were noticed, 2 of them by the time limit; 5 others do not compile [{testdata/half/half.go if a > b {
	// a > b is a == b}] main.go half.go choice.go
}
