package host

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// serve answers on a Unix socket with handler, and returns the socket.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener := fixture.Value(net.Listen("unix", socket))(t)
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket
}

func TestDocker(t *testing.T) {
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/containers/json" {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `[{"Id":%q,"Names":["/link/alias","/trainer"],"Image":"torch:2","Labels":{"a":"b"}},
			{"Id":%q,"Names":null,"Labels":{"io.kubernetes.pod.name":"p","io.kubernetes.pod.namespace":"n","io.kubernetes.container.name":"c"},"Mounts":[{}]}]`, id1, id2)
	})
	for _, source := range []Names{Docker(socket), Podman(socket)} {
		names, err := source.Containers(t.Context())
		if err != nil || len(names) != 2 || names[id1] != (ContainerName{Name: "trainer", Image: "torch:2"}) ||
			names[id2] != (ContainerName{Namespace: "n", Pod: "p", Container: "c"}) {
			t.Errorf("%s: %+v, %v", source.Source(), names, err)
		}
	}
}

func TestWithoutDocker(t *testing.T) {
	names, err := Docker(filepath.Join(t.TempDir(), "none")).Containers(t.Context())
	fixture.If(t, err != nil || len(names) != 0, "%v, %v", names, err)
	if names, err := KubeletLogs(filepath.Join(t.TempDir(), "none")).Containers(t.Context()); err != nil ||
		len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestDockerBadAnswers(t *testing.T) {
	t.Parallel()
	sent := 0
	for name, handler := range map[string]http.HandlerFunc{
		"garbage": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"object":  func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"message":"no"}`) },
		"500": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "[]", http.StatusInternalServerError)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		},
		"100 MB": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "[")
			for sent = 0; sent < 100<<20; sent += 1 << 20 {
				if _, err := io.WriteString(w, strings.Repeat(`{"Id":"x"},      `, 1<<16)); err != nil {
					return
				}
			}
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "[")
		},
	} {
		t.Run(name, func(t *testing.T) {
			names, err := Docker(serve(t, handler)).Containers(t.Context())
			fixture.If(t, err == nil, "no error, but %v", names)
		})
	}
	fixture.AtMost(t, sent, 64<<20, "bytes were read")
}

// TestDockerTimeout has an engine that accepts a request and never answers: the
// process has a name once its patience is over, and the failure is counted.
func TestDockerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newDocker("docker", "")
		engine.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go io.Copy(io.Discard, server)
			return client, nil
		}
		proc := &fakeProc{}
		proc.set(1, in("/docker/"+id1))
		table := running(t, proc, engine)
		fixture.Equal(t, keyOf(t, table, 1), "", "at once")
		time.Sleep(patience - 1)
		fixture.Equal(t, keyOf(t, table, 1), "", "before its time it is")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if k := keyOf(t, table, 1); k != "container:"+id1 || count(table)["docker"] != 1 {
			t.Errorf("%q, failures %v", k, count(table))
		}
	})
}

// TestCutLinks has links whose names the kubelet cut at 251 bytes: they name the
// container whose id begins so, if one does.
func TestCutLinks(t *testing.T) {
	cut := func(pod string, digits int, id string) string { // as the kubelet does
		return (strings.Repeat(pod, 251-len("_n_c-")-digits) + "_n_c-" + id)[:251] + ".log"
	}
	last := strings.Repeat("ab", 32)
	for name, c := range map[string]struct {
		links []string
		known string // another container
		want  string
	}{
		"most of the id":      {links: []string{cut("p", 55, id1)}, want: "pod:n/pp"},
		"enough of it":        {links: []string{cut("p", 8, id1)}, want: "pod:n/pp"},
		"too little of it":    {links: []string{cut("p", 7, id1)}},
		"nothing of it":       {links: []string{cut("p", 0, id1)}},
		"another's":           {links: []string{cut("p", 30, id2)}},
		"not cut":             {links: []string{"p_n_c-" + id1[:20] + ".log"}},
		"two links":           {links: []string{cut("p", 20, id1), cut("q", 21, id1)}},
		"another's link":      {links: []string{cut("p", 20, id1), "q_n_c-" + id1[:40] + id2[40:] + ".log"}},
		"another container":   {links: []string{cut("p", 20, id1)}, known: id1[:20] + last[20:]},
		"a further container": {links: []string{cut("p", 20, id1)}, known: last, want: "pod:n/pp"},
		"a link of its own":   {links: []string{cut("p", 20, id1), "q_n_c-" + id1 + ".log"}, want: "pod:n/q/c"},
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			for _, link := range c.links {
				fixture.Must(t, os.Symlink("/nowhere", filepath.Join(dir, link)))
			}
			proc := &fakeProc{}
			proc.set(1, in("/kubepods/pod"+uid+"/"+id1))
			table := running(t, proc, KubeletLogs(dir))
			if c.known != "" {
				proc.set(2, in("/kubepods/pod"+uid+"/"+c.known))
				keyOf(t, table, 2)
			}
			keyOf(t, table, 1)
			synctest.Wait()
			time.Sleep(patience)
			key := keyOf(t, table, 1)
			fixture.If(t, !strings.HasPrefix(key, cmp.Or(c.want, "pod:"+uid)), "%s: %s", name, key)
		})
	}
}

func TestKubeletLogs(t *testing.T) {
	dir := t.TempDir()
	for _, link := range []string{"train-0_ml_main-" + id1 + ".log", "a_b-" + id2 + ".log", "a_b_c-" + id2[1:] + ".log",
		"a_b_c_d-" + id2 + ".log", "-.log", ".log", "_", id2 + ".log"} {
		fixture.Must(t, os.Symlink("/nowhere", filepath.Join(dir, link)))
	}
	names, err := KubeletLogs(dir).Containers(context.Background())
	fixture.If(t, err != nil || len(names) != 1 ||
		names[id1] != (ContainerName{Namespace: "ml", Pod: "train-0", Container: "main"}),
		"%+v, %v", names, err)
	fixture.Must(t, fixture.Error(KubeletLogs(filepath.Join(dir, "_")).Containers(context.Background())))
	plain := filepath.Join(t.TempDir(), "file")
	os.WriteFile(plain, nil, 0o600)
	fixture.If(t, fixture.Error(KubeletLogs(plain).Containers(context.Background())) == nil,
		"no error for a path that is not a directory")
}
