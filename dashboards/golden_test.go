package dashboards

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"

	"gpusteward/internal/fixture"
)

func TestMain(m *testing.M) {
	plugins.RegisterDefaultPlugins()
	os.Exit(m.Run())
}

// generated returns the text of the files.
func generated(t *testing.T) map[string]string {
	t.Helper()
	files := fixture.Value(Files())(t)
	if len(files) < 7 {
		t.Fatalf("%d dashboards", len(files))
	}
	return files
}

// TestGolden compares the generated files with the rows, or writes them with -update. make generate
// does that.
func TestGolden(t *testing.T) { fixture.GoldenFiles(t, "*.json", generated(t)) }

// TestSchema reads the files by Grafana's own schema: no field is unknown, missing or of another
// type, every value is within its bounds, and nothing is lost in a round trip.
func TestSchema(t *testing.T) {
	t.Parallel()
	for name, text := range generated(t) {
		d, err := strictly([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again := fixture.Value(json.MarshalIndent(d, "", "  "))(t)
		var want, got any
		if json.Unmarshal([]byte(text), &want) != nil || json.Unmarshal(again, &got) != nil {
			t.Fatalf("%s: not JSON", name)
		}
		x, _ := json.Marshal(want)
		y, _ := json.Marshal(got)
		if !bytes.Equal(x, y) {
			t.Errorf("%s: a round trip through Grafana's schema changes it", name)
		}
	}
	// The schema refuses errors.
	text := generated(t)["gpusteward-fleet.json"]
	for old, wrong := range map[string]string{
		`"gridPos"`:           `"gridPosition"`,
		`"templating"`:        `"template"`,
		`"schemaVersion": 42`: `"schemaVersion": "42"`,
		`"legendFormat"`:      `"legend"`,
	} {
		broken := bytes.Replace([]byte(text), []byte(old), []byte(wrong), 1)
		if _, err := strictly(broken); err == nil || string(broken) == text {
			t.Errorf("%s as %s is accepted", old, wrong)
		}
	}
}
