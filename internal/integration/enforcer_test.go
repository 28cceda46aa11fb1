package integration

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/gemini"
	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A hooked is a process under the hook, as far as the broker can tell. It is this process.
type hooked struct {
	t    *testing.T
	conn *net.UnixConn
}

// hello opens a session on a GPU, and returns its tenant.
func hello(t *testing.T, socket, uuid, wished string) (h hooked, tenant string) {
	t.Helper()
	conn := fixture.Value(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	t.Cleanup(func() { conn.Close() })
	h = hooked{t, conn}
	m := wire.Hello{PID: uint32(os.Getpid()), GPUs: 1, CUDA: 13000}
	copy(m.Hook[:], "0.1")
	copy(m.Tenant[:], wished)
	_, err := hex.Decode(m.UUID[0][:], []byte(strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", "")))
	fixture.Stop(t, err != nil, "%s: %v", uuid, err)
	fixture.Must(t, fixture.Error(conn.Write(m.Append(wire.Header{Type: wire.TypeHello, Seq: 1}.Append(nil)))))
	welcome, payload := h.answered(wire.TypeWelcome)
	var w wire.Welcome
	w.Decode(payload)
	var seat wire.Usage // as for a new context
	fixture.Must(t, fixture.Error(conn.Write(seat.Append(wire.Header{Type: wire.TypeUsage, Seq: 2,
		Session: welcome.Session}.Append(nil)))))
	return h, wire.Text(w.Tenant[:])
}

// hears returns the payload of the next frame of a type.
func (h hooked) hears(want wire.Type) []byte {
	h.t.Helper()
	_, payload := h.answered(want)
	return payload
}

// answered returns the next frame of a type.
func (h hooked) answered(want wire.Type) (wire.Header, []byte) {
	h.t.Helper()
	fixture.Must(h.t, h.conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		frame := make([]byte, wire.FrameMax)
		// the page's descriptor is left in the control data
		n, _, _, _, err := h.conn.ReadMsgUnix(frame, make([]byte, 64))
		fixture.Stop(h.t, err != nil, "waiting for %v: %v", want, err)
		if header, payload, err := wire.Decode(frame[:n]); err != nil || header.Type == want {
			fixture.Must(h.t, err)
			return header, payload
		}
	}
}

// The agent with the enforcer enabled is a broker, exports its books, and
// applies another table without dropping a session.
func TestAgentShares(t *testing.T) {
	t.Parallel()
	dir := fixture.ShortDir(t)
	socket := filepath.Join(dir, "broker/broker.sock")
	config := func(memory string) string {
		return fmt.Sprintf("enforcer:\n  enabled: true\n  tenants:\n    - {name: tests, select: [{users: [%d]}], "+
			"guarantee: 30 %%, limit: 50 %%, memory: %s}\n    - {name: batch}\n", os.Getuid(), memory)
	}
	path := fixture.Config(t, config("4 GiB"))
	a := spawn(t, nil, "--demo=testdata/scenario/two.yml", "--config.file="+path, "--runtime.dir="+dir).ready()
	a.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	uuid := a.uuid(1)

	first, tenant := hello(t, socket, uuid, "")
	fixture.Equal(t, tenant, "tests", "this process is of")
	if _, tenant := hello(t, socket, uuid, "batch"); tenant != "batch" {
		t.Errorf("the program that asks for batch belongs to %q", tenant)
	}
	tests := fmt.Sprintf(`{gpu="1",tenant="tests",uuid="%s"}`, uuid)
	a.sees("the sessions", func(s series) bool {
		return s["nvgpu_quota_sessions"+tests] == 1 && s["nvgpu_quota_memory_limit_bytes"+tests] == 4<<30 &&
			s["nvgpu_quota_compute_limit_ratio"+tests] == .5 &&
			s[`nvgpu_broker_sessions{state="active"}`]+s[`nvgpu_broker_sessions{state="authenticated"}`] == 2
	})
	if status, table, _ := gpusteward(t, "status", "--runtime.dir="+dir); status != 0 ||
		!strings.Contains(table, "\ntests  ") {
		t.Errorf("gpusteward status: exit status %d, no line of the tenant tests:\n%s", status, table)
	}
	fixture.Rewrite(t, path, config("2 GiB"))
	a.hup()
	var m wire.Memory
	m.Decode(first.hears(wire.TypeLimitsChanged))
	fixture.Equal(t, m.Bytes, 2<<30, "the cap is now … bytes, want 2 GiB")
	a.sees("the new cap", func(s series) bool {
		return s["nvgpu_quota_memory_limit_bytes"+tests] == 2<<30 && s["nvgpu_quota_sessions"+tests] == 1
	})
	a.endsWell()
}

// The agent answers programs under Gemini's hook, reports an address that it
// cannot listen at, and reports that another list needs a restart.
func TestAgentServesGemini(t *testing.T) {
	t.Parallel()
	table := filepath.Join(t.TempDir(), "GPU-0")
	fixture.Rewrite(t, table, "1\npod/a 0.5 1.0 1000\n")
	config := func(enabled bool, listen string) string {
		return fmt.Sprintf("enforcer:\n  enabled: %v\n  gemini:\n    - {role: pod-manager, listen: %q, file: %s, "+
			"unknown: deny}\n", enabled, listen, table)
	}
	path := fixture.Config(t, config(true, "127.0.0.1:0"))
	dir := t.TempDir()
	a := spawn(t, nil, "--demo=h100", "--config.file="+path, "--runtime.dir="+dir).ready()
	address := a.log.find("programs under Gemini's hook are served")["address"].(string)
	conn := fixture.Value(net.Dial("tcp", address))(t)
	defer conn.Close()
	fixture.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	question := fixture.Value(gemini.Request{Name: []byte("pod/a"), ID: 7, Kind: gemini.Quota}.Append(nil))(t)
	fixture.Must(t, fixture.Error(conn.Write(question)))
	var frame [gemini.ResponseSize]byte
	fixture.Must(t, fixture.Error(io.ReadFull(conn, frame[:])))
	// five turns of 20 ms, since it is alone
	r := gemini.DecodeResponse(gemini.Quota, &frame)
	fixture.If(t, r.ID != 7 || r.Quota != 100, "the answer is %+v", r)

	a.sees("what it did", func(s series) bool {
		return s[`nvgpu_gemini_requests_total{listen="`+address+`",op="quota"}`] == 1 &&
			s[`nvgpu_quota_turns_total{gpu="",tenant="gemini:pod/a",uuid="GPU-0"}`] == 1
	})
	if status, shown, _ := gpusteward(t, "status", "--runtime.dir="+dir); status != 0 ||
		!strings.Contains(shown, "\ngemini:pod/a  ") {
		t.Errorf("gpusteward status: exit status %d, no line of the client:\n%s", status, shown)
	}

	other := fixture.Config(t, config(true, address))
	second := spawn(t, nil, "--demo=h100", "--config.file="+other)
	eventually(t, "the second one ends", second.hasEnded)
	if status := second.status; status == 0 || !strings.Contains(second.log.String(),
		"enforcer: gemini[0]: listen for clients: listen tcp "+address+": bind: address already in use") {
		t.Errorf("where the address is taken: exit status %d, %s", status, second.log)
	}
	off := spawn(t, nil, "--demo=h100", "--config.file="+fixture.Config(t, config(false, address))).ready()
	fixture.Equal(t, off.log.find("programs under Gemini's hook are served") == nil, true, "it serves only if enabled")
	fixture.Rewrite(t, path, config(true, address))
	a.hup()
	eventually(t, "a restart is asked for", func() bool {
		return strings.Contains(a.log.String(), "enforcer.gemini has changed, which requires a restart")
	})
	a.endsWell()
}

// Hook, unit and agent have the same default socket.
func TestOneSocketByDefault(t *testing.T) {
	t.Parallel()
	socket := config.Enforcer{}.BrokerSocket("/run/gpusteward")
	for path, line := range map[string]string{
		"enforcer/hook/src/base/settings.c":       "#define GS_DEFAULT_SOCKET \"" + socket + "\"\n",
		"deploy/systemd/gpusteward-broker.socket": "\nListenSequentialPacket=" + socket + "\n",
		"deploy/systemd/gpusteward.tmpfiles":      "\nd " + filepath.Dir(socket) + " ",
	} {
		text, err := os.ReadFile(path)
		fixture.If(t, err != nil || !strings.Contains(string(text), line), "%s has no %q (%v)", path, line, err)
	}
}

// gpusteward exec passes on the arguments after --, and the program's exit status.
func TestExecCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library := filepath.Join(dir, "libgpusteward.so")
	gcc := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-")
	gcc.Stdin = strings.NewReader("int gs_none;")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script := `echo "$LD_PRELOAD $GPUSTEWARD_TENANT $GPUSTEWARD_SOCKET $1"; exit 7`
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"exec", "--tenant=a", "--socket=/s", "--library=" + library, "--", "sh", "-c", script, "sh",
			"--tenant"}, 7, library + " a /s --tenant\n"},
		{[]string{"exec", "--runtime.dir=/r", "--library=" + library, "--", "sh", "-c", script}, 7,
			library + "  /r/broker/broker.sock \n"},
		{[]string{"exec", "--library=" + library, "--", "gs-no-such-command"}, 127,
			"gpusteward: execute gs-no-such-command: "},
		{[]string{"exec", "--library=" + dir + "/none", "--", "true"}, 125, "gpusteward: the hook was not found at"},
		{[]string{"exec", "--runtime.dir=/r", "--library=" + library, "--", "true"}, 0,
			"gpusteward: no broker at /r/broker/broker.sock: no such file or directory: no quota applies"},
		{[]string{"exec", "--runtime.dir=/r", "--library=" + library, "--require-broker", "--", "true"}, 125,
			"gpusteward: no broker at /r/broker/broker.sock: no such file or directory; --require-broker"},
		{[]string{"exec", "--library=" + library}, exitUsage, "COMMAND"},
	} {
		cmd := process([]string{"GPUSTEWARD_TENANT=", "GPUSTEWARD_SOCKET="}, c.args...)
		out, err := cmd.CombinedOutput()
		fixture.Need(t, cmd.ProcessState == nil, false, "it did not begin: %v", err)
		if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("%q: exit status %d, %q; want %d and %q", c.args, got, out, c.status, c.says)
		}
	}
}

// TestSuspendCommands have orders of the command line reach the enforcer.
func TestSuspendCommands(t *testing.T) {
	t.Parallel()
	runtime := fixture.ShortDir(t)
	dir := "--runtime.dir=" + runtime
	a := start(t, "--demo", "--config.file="+fixture.Config(t, "enforcer: {enabled: true}\n"), dir).ready()
	eventually(t, "the enforcer takes orders", func() bool { // the socket is there before it listens
		conn, err := net.Dial("unix", filepath.Join(runtime, "enforcer/control.sock"))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{dir, "suspend", "unit:x.service"}, "the GPUs are simulated"},
		{[]string{dir, "resume-process", "unit:x.service"}, `no workload "unit:x.service" is suspended`},
		{[]string{"--runtime.dir=" + t.TempDir(), "suspend", "7"}, "and enforcer.enabled: true?"},
		{[]string{dir, "suspend"}, "<WORKLOAD> is missing"},
	} {
		if status, out, said := gpusteward(t, c.args...); status == 0 || !strings.Contains(said, c.want) || out != "" {
			t.Errorf("%q: exit status %d, %q, %q; want %q", c.args, status, out, said, c.want)
		}
	}
	eventually(t, "the orders are in the log", func() bool { return a.log.find("control")["workload"] == "unit:x.service" })
}
