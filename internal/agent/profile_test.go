package agent

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

func TestProfile(t *testing.T) {
	dir := fixture.ShortDir(t)
	file := filepath.Join(dir, "out")
	fixture.Rewrite(t, file, "kept")
	fixture.Must(t, os.Mkdir(filepath.Join(dir, "enforcer"), 0o755))
	check := func(args string, status int, asked <-chan string, wants ...string) { // an argument may be empty
		t.Helper()
		var out, said bytes.Buffer
		all := append([]string{"profile", "--runtime.dir=" + dir}, strings.Split(args, " ")...)
		fixture.Equal(t, Run(t.Context(), dir, all, &out, &said), status, "%s: the exit status", args)
		if asked != nil {
			fixture.Equal(t, <-asked, "/profile?"+wants[0], "%s: it asks for", args)
			wants = wants[1:]
		}
		fixture.Contains(t, out.String()+said.String(), wants[0], "%s", args)
	}
	check("1 --seconds=61", exitUsage, nil, `--seconds: "61" is not a whole number from 1 to 60`)
	check("1 --seconds=0", exitUsage, nil, `--seconds: "0" is`)
	check("1 --format=x", exitUsage, nil, `--format: there is no value "x"; choose from table, pprof, trace, json`)
	check("", exitUsage, nil, `WORKLOAD: it is empty`)
	check("99999999999", exitUsage, nil, `WORKLOAD: "99999999999" is no PID`)
	check("1", 1, nil, "profile: no enforcer answers at "+filepath.Join(dir, exporter.CrashSocket)+": is it running, with this --runtime.dir and enforcer.enabled: true?\n")
	check("1 --output="+dir, 1, nil, "is not a file")
	check("1 --output="+dir+"/typo/file", 1, nil, "profile: --output: stat "+dir+"/typo: no such file or directory")
	_, terminal := openTerminal(t)
	var said bytes.Buffer
	Run(t.Context(), dir, []string{"profile", "--format=pprof", "1"}, terminal, &said)
	fixture.Contains(t, said.String(), "write a file with --output=FILE", "pprof to a terminal")

	l := fixture.Value(net.Listen("unix", filepath.Join(dir, exporter.CrashSocket)))(t)
	t.Cleanup(func() { l.Close() })
	asked := make(chan string, 1)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked <- r.URL.String(); r.URL.Query().Get("pid") == "2" {
			http.Error(w, "no program 2", http.StatusNotFound)
		}
		fmt.Fprint(w, `{"kernels":[{"name":"_Z3addv"}]}`)
	}))
	check("1", 0, asked, "pid=1&seconds=10&spans=0", "add\n")
	check("--format=json 1a", 0, asked, "seconds=10&spans=0&workload=1a", `"_Z3addv"`)
	check("--seconds=3 --format=trace a:b", 0, asked, "seconds=3&spans=1&workload=a%3Ab", "traceEvents")
	check("--format=pprof 1", 0, asked, "pid=1&seconds=10&spans=0", "\x1f\x8b")
	check("--output="+file+" 2", 1, asked, "pid=2&seconds=10&spans=0", "profile: no program 2")
	fixture.Golden(t, file, "kept")
	check("--output="+file+" --format=json 1", 0, asked, "pid=1&seconds=10&spans=0", "")
	fixture.Golden(t, file, "{\"kernels\":[{\"name\":\"_Z3addv\"}]}\n")
	fixture.Equal(t, fixture.Value(os.Stat(file))(t).Mode(), 0o600, "the file's mode:")
}
