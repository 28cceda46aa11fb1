package agent

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestHTTPConfigFile asks an agent and a Prometheus with TLS and a password.
func TestHTTPConfigFile(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/api/v1/state":  `{"time":"2026-01-01T00:00:00Z","host":{"name":"by-tls"}}`,
		"/api/v1/health": fmt.Sprintf(`{"node":"by-tls","time":%q,"status":"ok","gpus":[{"gpu":"0","uuid":"G","status":"ok"}]}`, time.Now().Format(time.RFC3339)),
		"/metrics":       "up{instance=\"by-tls\"} 1\n",
		"/api/v1/query": `{"status":"success","data":{"resultType":"vector","result":[
			{"metric":{"instance":"by-tls","alert":"none"},"value":[1,"1"]}]}}`,
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, answers[r.URL.Path])
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		fixture.Rewrite(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	file("password", "secret\n")
	const trusts = "tls_config: {ca_file: ca.pem}\n"
	files := []struct{ http, want string }{
		{file("good.yml", trusts+"basic_auth: {username: me, password_file: password}\n"), "by-tls"},
		{file("ca.yml", trusts), "basic_auth: {username: NAME, password_file: FILE}"},
		{file("other.yml", "tls_config: {ca_file: ca.pem, server_name: other}\n"), "tls_config: {server_name: NAME}"},
		{file("empty.yml", ""), "tls_config: {ca_file: FILE}"},
		{file("key.yml", "\nbasicauth: {}\n"), `key.yml:2: unknown key "basicauth" (did you mean basic_auth?)`},
		{file("nested.yml", "basic_auth: {password-file: password}\n"),
			`nested.yml:1: unknown key "password-file" (did you mean password_file?)`},
		{file("both.yml", "basic_auth: {username: me}\nauthorization: {credentials: x}\n"), "both.yml: at most one of basic_auth"},
		{file("none.yml", "tls_config: {ca_file: none.pem}\n"), dir + "/none.pem"},
		{dir + "/absent.yml", "absent.yml: no such file"},
	}
	for _, command := range []string{"status", "check", "dump", "fleet"} {
		for _, f := range files {
			var out, said bytes.Buffer
			status := Run(t.Context(), t.TempDir(), []string{command, "--url=" + server.URL, "--http.config.file=" + f.http}, &out, &said)
			text := strings.Join(strings.Fields(out.String()+said.String()), " ")
			fixture.Contains(t, text, f.want, "%s with %s, status %d", command, filepath.Base(f.http), status)
			fixture.Equal(t, status == 0, f.want == "by-tls", "%s with %s succeeds", command, filepath.Base(f.http))
		}
	}
}
