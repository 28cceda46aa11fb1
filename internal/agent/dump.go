package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpusteward/collectors/host"
	"gpusteward/exporter"
)

// dumpFlags are the flags of gpusteward dump.
type dumpFlags struct {
	format, output, url string
	http                clientFile
}

// dumpPaths are what a dump of a format contains.
var dumpPaths = map[string]string{"prometheus": "/metrics", "dcgm": "/metrics/dcgm"}

func dumpCommand(app *kingpin.Application) (*kingpin.CmdClause, *dumpFlags) {
	d := new(dumpFlags)
	cmd := app.Command("dump", "Write the metrics of a running agent once, for the textfile collector of node_exporter "+
		"on a host that nothing else scrapes. Metrics of the agent's own process are left out, because node_exporter has "+
		"its own under these names.")
	cmd.Flag("format", "Names of the metrics: prometheus, or dcgm for those of dcgm-exporter.").
		Default("prometheus").EnumVar(&d.format, slices.Sorted(maps.Keys(dumpPaths))...)
	cmd.Flag("output", "File to replace in one step, such as /var/lib/prometheus/node-exporter/gpusteward.prom. If no "+
		"agent answers, the file is removed, so that nobody reads old values. The default is standard output.").
		PlaceHolder("FILE").StringVar(&d.output)
	cmd.Flag("url", "Address of an agent, such as http://node7:9836. The default is the agent at the control socket.").
		StringVar(&d.url)
	d.http.flag(cmd)
	return cmd, d
}

// run writes the metrics.
func (d *dumpFlags) run(ctx context.Context, runtimeDir string, stdout io.Writer) error {
	text, err := d.text(ctx, runtimeDir)
	switch {
	case err != nil && d.output != "":
		return errors.Join(err, d.remove())
	case err != nil:
		return err
	case d.output == "":
		_, err := stdout.Write(text)
		return err
	}
	if err := hasDirectory(d.output); err != nil {
		return err
	}
	const everybodyReads = 0o644 // node_exporter has a user of its own
	return host.ReplaceFile(d.output, everybodyReads,
		func(w io.Writer) error { _, err := w.Write(text); return err })
}

// hasDirectory returns an error if the directory of --output is missing: nobody reads one that is made for a typing error.
func hasDirectory(output string) error {
	if _, err := os.Stat(filepath.Dir(output)); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// remove removes the last dump. It leaves anything but a file alone.
func (d *dumpFlags) remove() error {
	info, err := os.Lstat(d.output)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	if err := os.Remove(d.output); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old values: %w", err)
	}
	return nil
}

// text returns the metrics in the text format, without those that every Go
// program has.
func (d *dumpFlags) text(ctx context.Context, runtimeDir string) ([]byte, error) {
	client, err := d.http.client()
	if err != nil {
		return nil, err
	}
	answer, err := exporter.Agent{RuntimeDir: runtimeDir, URL: d.url, Client: client}.Ask(ctx, dumpPaths[d.format])
	if err != nil {
		return nil, fmt.Errorf("no metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(answer))
	if err != nil {
		return nil, fmt.Errorf("no metrics: the answer is not in Prometheus's format: %w", err)
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if of, _, _ := strings.Cut(name, "_"); of == "go" || of == "process" || of == "promhttp" {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&text, families[name]); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
