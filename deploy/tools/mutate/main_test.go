package main

import (
	"os"
	"path/filepath"
)

// What lives, what is killed, what runs for ever, what does not compile, and
// what is not looked at; a mark without a reason is none.
func Example() {
	here, _ = os.Getwd()
	temp, _ = os.MkdirTemp("", "mutate")
	defer os.RemoveAll(temp)
	score(filepath.Join(here, "testdata", "half"), []string{"half.go"})
	// Output:
	// testdata/half/half.go:13:16: true is false
	// testdata/half/half.go:21:9: a + b is *new(string)
	// testdata/half/half.go:19:3: without a, b = b, a
	// testdata/half/half.go:27:9: !false is *new(bool)
	// testdata/half/half.go:27:10: false is true
	// testdata/half: 64.3 %: 9 of 14 mutants were noticed, 2 of them by the time limit; of others 1 do not compile and 2 are marked as equivalent
}
