//go:build pictures

package integration

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// picturesAfter is the time that the simulated host runs first: its charts show the last 15 minutes.
var picturesAfter = flag.Duration("pictures.after", 15*time.Minute,
	"how long the host runs before its pictures are made")

// TestPictures makes the live page's pictures.
func TestPictures(t *testing.T) {
	browser := needBrowser(t)
	docs := fixture.Value(filepath.Abs("docs"))(t)
	fixture.Must(t, os.MkdirAll(docs, 0o755))
	a := spawn(t, nil, "--demo").ready()
	time.Sleep(*picturesAfter)
	drive(t, browser, "pictures", a.url, docs)
}
