package collectors_test

import (
	"flag"
	"os"
	"testing"

	_ "gpusteward/collectors/all"
)

// update rewrites the golden files and the reference: go test ./collectors -update.
var update bool

func TestMain(m *testing.M) {
	flag.BoolVar(&update, "update", false, "write the golden files and the reference instead of comparing with them")
	flag.Parse()
	os.Exit(m.Run())
}
