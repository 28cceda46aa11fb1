package health

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

func gpuEntity(index string) incident.Entity {
	return incident.Entity{GPU: index, UUID: "GPU-" + index}
}

// judged returns a judgement on two GPUs with these findings.
func judged(findings ...Finding) Judgement {
	j := Judgement{Source: FromAgent, Verdict: Verdict{Node: "node7", Time: birth,
		GPUs: []Health{{GPU: "0", UUID: "GPU-0"}, {GPU: "1", UUID: "GPU-1"}}, Findings: findings}}
	j.Narrow(nil, nil, nil)
	return j
}

func TestExitStatus(t *testing.T) {
	found := func(s incident.Severity) Finding {
		return Finding{Check: "hot", Entity: gpuEntity("1"), Severity: s, State: s.State()}
	}
	shadow := found(incident.Critical)
	shadow.Shadow = true
	lost := judged()
	lost.GPUs[1].Status, lost.GPUs[1].Reason = incident.Unknown, "hangs in nvmlDeviceGetTemperature"
	lost.Narrow(nil, nil, nil)
	for name, c := range map[string]struct {
		j                 Judgement
		text, strict, npd int // with strict, only a critical finding is a failure
		word              string
	}{
		"well":      {judged(), 0, 0, 0, "OK - node7: 2 GPUs, no fault"},
		"info":      {judged(found(incident.Info)), 0, 0, 0, "OK"},
		"shadow":    {judged(shadow), 0, 0, 0, "OK"},
		"warning":   {judged(found(incident.Warning)), 1, 0, 1, "WARNING"},
		"critical":  {judged(found(incident.Critical)), 2, 2, 1, "CRITICAL"},
		"emergency": {judged(found(incident.Warning), found(incident.Emergency)), 2, 2, 1, "CRITICAL"},
		"unknown":   {lost, 3, 3, 2, "UNKNOWN - node7: GPU 1 hangs in nvmlDeviceGetTemperature"},
		"nothing":   {NoVerdict(Standalone, "node7", errors.New("why")), 3, 3, 2, "UNKNOWN - node7: why"},
	} {
		text, status := c.j.Report("text", incident.Warning)
		_, strict := c.j.Report("json", incident.Critical)
		_, npd := c.j.Report("npd", incident.Warning)
		fixture.If(t, status != c.text || strict != c.strict || npd != c.npd || !strings.HasPrefix(text, c.word),
			"%s: exit status %d, %d, %d, want %d, %d, %d:\n%s", name, status, strict, npd, c.text, c.strict, c.npd, text)
	}
}

// TestHeadlineIsTheReasonOfTheVerdict: a fault of a tenant does not count, so it
// is not what the first line names beside one that does.
func TestHeadlineIsTheReasonOfTheVerdict(t *testing.T) {
	job := Finding{Check: "job_hang", Severity: incident.Critical, State: incident.Failed, Message: "A job hangs.",
		Entity: incident.Entity{GPU: "0", UUID: "GPU-0", Tenant: "a", Workload: "slurm:1"}}
	node := Finding{Check: "host_kernel", Severity: incident.Warning, State: incident.Degraded, Message: "The kernel."}
	text, status := judged(job, node).Report("text", incident.Warning)
	if want := "WARNING - node7: node host_kernel: The kernel.\n"; status != 1 || !strings.HasPrefix(text, want) {
		t.Errorf("exit status %d, want 1 with %q:\n%s", status, want, text)
	}
	recovered := Finding{Check: "gpu_lost", Severity: incident.Info, State: incident.Recovering, Entity: gpuEntity("1"),
		Message: "It was gone.", Action: "Reboot.", Recovered: birth, Clears: birth.Add(4 * time.Minute)}
	text, status = judged(job, recovered).Report("text", incident.Warning)
	fixture.Equal(t, text, "OK - node7: 2 GPUs, no fault of the host; 1 fault of jobs or tenants\n"+
		"info      gpu=1 gpu_lost: It was gone. [recovered 00:00, clears 00:04 UTC]\n"+
		"Jobs and tenants, whose faults do not count:\ncritical  "+job.Entity.String()+" job_hang: A job hangs.\n", "well")
	fixture.Equal(t, status, 0, "exit status")
	text, status = judged(node).Report("text", incident.Critical)
	fixture.Equal(t, status, 0, "exit status of a warning that is no failure")
	fixture.Contains(t, text, "OK - node7: 2 GPUs, no critical fault; 1 warning\n", "the text")
}

func TestReportsListFindings(t *testing.T) {
	j := judged(Finding{Check: "host_kernel", Severity: incident.Emergency, State: incident.Failed,
		Message: "It is the node."},
		Finding{Check: "gpu_lost", Alert: "GPULost", Entity: gpuEntity("1"), Severity: incident.Emergency,
			State: incident.Failed, Since: birth, Latched: true, Message: "It is gone.", Action: "Reboot."},
		Finding{Check: "slow_gpu", Alert: "GPUSlowOutlier", Entity: gpuEntity("0"), Severity: incident.Warning,
			State: incident.Degraded, Shadow: true, Message: "It is slow."},
		Finding{Check: "hot", Entity: incident.Entity{}, Severity: incident.Warning, State: incident.Degraded,
			Message: "It is hot."})
	j.Unjudged, j.Notes = []string{"mem_leak"}, []string{"The kernel's log cannot be read."}
	text, _ := j.Report("text", incident.Warning)
	for _, want := range []string{
		"CRITICAL - node7: gpu=1 gpu_lost: It is gone. (and 2 more)\n",
		"\nemergency gpu=1 gpu_lost: It is gone. [since 2026-01-01T00:00:00Z] Do: Reboot. Once that is done: " +
			"gpusteward ack gpu_lost gpu=1\n",
		"\nshadow    gpu=0 slow_gpu: It is slow.\n", "\nwarning   node hot: It is hot.\n",
		"note: without an agent 1 of ", "\nnote: The kernel's log cannot be read.\n",
	} {
		fixture.Contains(t, text, want, "the text")
	}
	encoded, _ := j.Report("json", incident.Warning)
	var back Judgement
	if err := json.Unmarshal([]byte(encoded), &back); err != nil || back.Source != FromAgent ||
		back.Status != incident.Failed || len(back.Findings) != 4 || back.Unjudged[0] != "mem_leak" {
		t.Errorf("%v: %+v", err, back)
	}
	npd, _ := j.Report("npd", incident.Warning)
	fixture.If(t, npd != "gpu=1 gpu_lost: It is gone. (and 2 more)\n", "npd: %q", npd)
}

// TestReportsFoldMissingData: what is lost has no data for many checks.
func TestReportsFoldMissingData(t *testing.T) {
	dark := func(check, gpu string) Finding {
		return Finding{Check: check, Entity: gpuEntity(gpu), State: incident.Unknown, Message: "No data for " + check + "."}
	}
	over := Finding{Check: "hot", Entity: gpuEntity("1"), Severity: incident.Warning, State: incident.Unknown,
		Message: "There is no more data. It was hot."}
	text, _ := judged(dark("a", "1"), dark("b", "0"), over, dark("c", "1")).Report("text", incident.Warning)
	_, lines, _ := strings.Cut(text, "\n")
	want := "unknown   gpu=1 2 checks have no more data: a, c\nunknown   gpu=0 b: No data for b.\n" +
		"warning   gpu=1 hot: There is no more data. It was hot.\n"
	fixture.If(t, lines != want, "got\n%swant\n%s", lines, want)
}

// hostileName is a possible name of a workload.
const hostileName = "job\x1b[2J\n\r\u202e\u0085\x00\xff$(reboot)\"'"

func TestReportsAreSafeToPrint(t *testing.T) {
	f := Finding{Check: "mem_leak", Entity: incident.Entity{GPU: "0", UUID: "GPU-0", Workload: hostileName},
		Severity: incident.Warning, State: incident.Degraded, Message: hostileName + " grows", Action: hostileName}
	j := judged(f)
	j.GPUs[1].Reason, j.Notes = hostileName, []string{hostileName}
	for _, format := range Formats {
		text, _ := j.Report(format, incident.Warning)
		fixture.If(t, !utf8.ValidString(text) ||
			strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) ||
			strings.Contains(text, `\u`),
			"%s is not safe to print: %q", format, text)
		fixture.Equal(t, format == "npd" && strings.Count(text, "\n") != 1, false, "npd has not one line: %q", text)
	}
	fixture.If(t, j.Findings[0].Message != f.Message || j.Notes[0] != hostileName, "the judgement itself was changed")
}

// node-problem-detector cuts at 80 bytes. A text of at most 80 characters stays whole only if it has no more bytes.
func FuzzLineForNPD(f *testing.F) {
	f.Add(strings.Repeat("é", 100))
	f.Add(strings.Repeat("日本", 30))
	f.Add("short")
	f.Add(strings.Repeat("a", 50) + hostileName + "\U0001F600" + strings.Repeat("b", 50))
	f.Fuzz(func(t *testing.T, message string) {
		text, _ := judged(Finding{Check: "c", Entity: gpuEntity("0"), Severity: incident.Warning,
			State: incident.Degraded, Message: message}).Report("npd", incident.Warning)
		line, ok := strings.CutSuffix(text, "\n")
		if !ok || len(line) > 80 || !utf8.ValidString(line) || strings.Contains(line, "\n") {
			t.Fatalf("%d bytes, %d characters: %q", len(line), utf8.RuneCountInString(line), line)
		}
		fixture.Need(t, strings.HasPrefix(line, "gpu=0 c:"), true, "the beginning is lost: %q", line)
	})
}

func TestLongLineIsCutBetweenCharacters(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat("a", 80):       strings.Repeat("a", 80),
		strings.Repeat("a", 81):       strings.Repeat("a", 77) + "...",
		strings.Repeat("é", 41):       strings.Repeat("é", 38) + "...",
		"a" + strings.Repeat("日", 30): "a" + strings.Repeat("日", 25) + "...",
	} {
		fixture.Equal(t, shorten(text, 80), want, "%q is cut to", text)
	}
	fixture.Equal(t, longestOfNPD, 80, "bytes that node-problem-detector keeps unless configured otherwise")
}

func TestAnsweredVerdicts(t *testing.T) {
	v := judged(Finding{Check: "gpu_lost", Entity: gpuEntity("1"), Severity: incident.Emergency, State: incident.Failed,
		Message: "It is gone."}).Verdict
	answer := fixture.Value(json.Marshal(v))(t)
	for age, want := range map[time.Duration]incident.State{0: incident.Failed, 30 * time.Second: incident.Failed,
		31 * time.Second: incident.Unknown, -time.Minute: incident.Failed} {
		j, err := Answered(answer, birth.Add(age))
		fixture.If(t, err != nil || j.Status != want || j.Node != "node7" || j.Source != FromAgent,
			"%v old: %v, %v, want %v", age, err, j.Status, want)
		if want == incident.Unknown && (!strings.Contains(j.Reason, "31s old") || len(j.Findings)+len(j.GPUs) > 0) {
			t.Errorf("the judgement shows stale values: %+v", j)
		}
	}
	starting := fixture.Value(json.Marshal(NewMonitor(Options{Node: "node7"}, Settings{}).Verdict()))(t)
	if j, err := Answered(starting, birth); err != nil || j.Status != incident.Unknown || j.Node != "node7" ||
		j.Reason != "the agent is starting" {
		t.Errorf("an agent that starts: %v, %+v", err, j)
	}
	for _, answer := range []string{"", "<html>", "{}", "null", `{"status":"ok"}`, `{"status":"fine","gpus":[]}`} {
		fixture.Fails(t, fixture.Error(Answered([]byte(answer), birth)), "is that gpusteward?", "%q", answer)
	}
}

func TestNarrow(t *testing.T) {
	finding := func(check, gpu string, s incident.Severity) Finding {
		f := Finding{Check: check, Severity: s, State: s.State(), Message: check}
		if gpu != "" {
			f.Entity = gpuEntity(gpu)
		}
		return f
	}
	all := []Finding{finding("gpu_lost", "1", incident.Emergency), finding("hot", "0", incident.Warning),
		finding("host_kernel", "", incident.Warning)}
	for name, c := range map[string]struct {
		checks, gpus []string
		want         incident.State
		left         []string
		reason       string
	}{
		"all":               {nil, nil, incident.Failed, []string{"gpu_lost", "hot", "host_kernel"}, ""},
		"the other GPU":     {nil, []string{"0"}, incident.Degraded, []string{"hot", "host_kernel"}, ""},
		"by UUID":           {nil, []string{"GPU-1"}, incident.Failed, []string{"gpu_lost", "host_kernel"}, ""},
		"a check":           {[]string{"hot"}, nil, incident.Degraded, []string{"hot"}, ""},
		"a check and a GPU": {[]string{"hot"}, []string{"0"}, incident.Degraded, []string{"hot"}, ""},
		"neither":           {[]string{"gpu_lost"}, []string{"0"}, incident.OK, nil, ""},
		"a GPU that is not": {[]string{"gpu_lost"}, []string{"0", "7"}, incident.Unknown, nil, "GPU 7 is not on this host"},
		"one that is down":  {[]string{"hot"}, []string{"1"}, incident.Unknown, nil, "GPU 1 does not answer: gpu is lost"},
	} {
		j := judged(slices.Clone(all)...)
		j.GPUs[1].Reason = "does not answer: gpu is lost"
		j.Narrow(c.checks, nil, c.gpus)
		var left []string
		for _, f := range j.Findings {
			left = append(left, f.Check)
		}
		fixture.If(t, j.Status != c.want || !slices.Equal(left, c.left) || j.Reason != c.reason,
			"%s: %v, %v, %q; want %v, %v, %q", name, j.Status, left, j.Reason, c.want, c.left, c.reason)
	}
	without := judged(slices.Clone(all)...)
	without.Narrow(nil, []string{"gpu_lost", "host_kernel"}, nil)
	if f := without.Findings; len(f) != 1 || f[0].Check != "hot" || without.Status != incident.Degraded {
		t.Errorf("without two checks: %v, %+v", without.Status, f)
	}
	none := NoVerdict(Standalone, "", errors.New("no driver"))
	none.Narrow(nil, nil, []string{"0"})
	fixture.If(t, none.Status != incident.Unknown || none.Reason != "no driver",
		"where there is nothing: %v, %q", none.Status, none.Reason)
}

// TestReportOfOneGPU checks the lines about a GPU with few known values.
func TestReportOfOneGPU(t *testing.T) {
	one := func(status incident.State, reason string, findings ...Finding) Judgement {
		j := Judgement{Verdict: Verdict{GPUs: []Health{{GPU: "0", UUID: "GPU-0", Status: status, Reason: reason}},
			Findings: findings}}
		j.Narrow(nil, nil, nil)
		return j
	}
	lost := Finding{Check: "gpu_lost", Entity: gpuEntity("0"), Severity: incident.Emergency, State: incident.Failed,
		Message: "It is gone."}
	silent := Finding{Check: "hot", Entity: gpuEntity("0"), State: incident.Unknown, Message: "There is no data.", Action: "Look."}
	for _, c := range []struct {
		Judgement
		want string
	}{
		{one(incident.OK, ""), "OK - this host: 1 GPU, no fault\n"},
		{one(incident.OK, "is away"), "OK - this host: 1 GPU, no fault\n"},
		{one(incident.Unknown, ""), "UNKNOWN - this host: " + noData + "\nunknown   gpu=0 " + noData + "\n"},
		{one(incident.Unknown, "hangs"), "UNKNOWN - this host: GPU 0 hangs\nunknown   gpu=0 hangs\n"},
		{one(incident.Unknown, "", silent), "UNKNOWN - this host: " + noData +
			"\nunknown   gpu=0 hot: There is no data.\nunknown   gpu=0 " + noData + "\n"},
		{one(incident.Failed, "hangs", lost),
			"CRITICAL - this host: GPU 0 hangs: It is gone.\nemergency gpu=0 gpu_lost: It is gone.\n"},
		{one(incident.Failed, "", lost),
			"CRITICAL - this host: gpu=0 gpu_lost: It is gone.\nemergency gpu=0 gpu_lost: It is gone.\n"},
	} {
		got, _ := c.Report("text", incident.Warning)
		fixture.If(t, got != c.want, "%q, want %q", got, c.want)
	}
}
