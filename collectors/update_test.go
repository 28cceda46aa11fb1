package collectors

import (
	"flag"
	"os"
	"testing"
)

// update rewrites the golden files and the reference: go test ./collectors -update.
var update bool

func TestMain(m *testing.M) {
	flag.BoolVar(&update, "update", false, "write the golden files and the reference instead of comparing with them")
	flag.Parse()
	os.Exit(m.Run())
}
