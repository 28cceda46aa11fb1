package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/enforcer"
	"gpusteward/enforcer/crash"
	"gpusteward/exporter"
	"gpusteward/health/incident"
)

// crashFlags are the arguments of gpusteward crash.
type crashFlags struct {
	id   int
	json bool
}

func crashCommand(app *kingpin.Application) (*kingpin.CmdClause, *crashFlags) {
	c := new(crashFlags)
	cmd := app.Command("crash", "List the crashes of programs under the hook, or show one: the memory that a faulty "+
		"address was in, the kernels in flight, and the last launches and allocations. Users see the crashes of their "+
		"own programs, and root sees all.")
	cmd.Flag("json", "Write JSON.").BoolVar(&c.json)
	cmd.Arg("ID", "Crash, as the list has it.").IntVar(&c.id)
	return cmd, c
}

// run writes the list, or one record.
func (c *crashFlags) run(ctx context.Context, runtimeDir string, stdout io.Writer) error {
	path := crashPath
	if c.id != 0 {
		path += "/" + strconv.Itoa(c.id)
	}
	text, err := exporter.AskCrashes(ctx, runtimeDir, path)
	if err != nil {
		return fmt.Errorf("crash: %w", err)
	}
	var all []crash.Head
	var one crash.Record
	switch {
	case c.json:
		_, err = fmt.Fprintf(stdout, "%s\n", text)
	case c.id != 0:
		if err = json.Unmarshal(text, &one); err == nil {
			err = one.Text(stdout)
		}
	default:
		if err = json.Unmarshal(text, &all); err == nil {
			err = crash.Table(stdout, all)
		}
	}
	return err
}

// crashed returns a crash as an event of the journal.
func crashed(h crash.Head) incident.Event {
	return incident.Event{Kind: incident.KindCrash, Time: h.Time, Severity: incident.Info, PID: h.PID, Comm: h.Comm,
		Workload: h.Workload, Entity: incident.Entity{Tenant: h.Tenant, Workload: h.Workload},
		Message: h.Says, Action: fmt.Sprintf("see gpusteward crash %d", h.ID)}
}

// crashPath is the path of the list at the enforcer's socket for crashes; a record is below it.
const crashPath = "/crashes"

// crashReads answers with the crashes that the user of the request may see.
func crashReads(e *enforcer.Enforcer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uid, known := exporter.UIDOf(r.Context())
		name, one := strings.CutPrefix(r.URL.Path, crashPath+"/")
		id, err := strconv.Atoi(name)
		if !known || !one && r.URL.Path != crashPath || one && err != nil {
			http.Error(w, "this socket has "+crashPath+", "+crashPath+"/ID and "+exporter.ProfilePath, http.StatusNotFound)
			return
		}
		text, found := []byte(nil), true
		if one {
			text, found, err = e.Crash(uint32(uid), id)
		} else {
			text, err = json.Marshal(e.Crashes(uint32(uid)))
		}
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case !found:
			http.Error(w, fmt.Sprintf("no crash %d of your programs is kept", id), http.StatusNotFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text)
		}
	})
}
