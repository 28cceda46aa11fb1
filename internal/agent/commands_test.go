package agent

import (
	"bytes"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// TestUsageErrorsNameTheFlag: an error about a value names its flag or argument.
func TestUsageErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"status --format=yaml":      "--format: enum value must be one of text,json, got 'yaml'",
		"--log.level=loud":          "--log.level: enum value must be one of debug,info,warn,error",
		"--demo --demo.hosts=many":  `--demo.hosts: "many" is not a number that fits`,
		"check --timeout=5":         "--timeout: time: missing unit in duration",
		"check --timeout=1s":        "gpusteward: --timeout=1s is too short",
		"stack python3":             `PID: "python3" is not a number that fits`,
		"stack":                     "required argument 'PID' not provided",
		"help statu":                "unexpected statu",
		"status --web.config.file=": "unknown long flag '--web.config.file'",
		"--demos":                   "unknown long flag '--demos'",
		"diag --level=9 --gpus=0,1": "--level: enum value must be one of 1,2,3",
		"diag --busy=perhaps":       "perhaps",
		"diag --fail-on=info":       "info",
		"diag extra":                "extra",
		"check --bogus":             "--bogus",
		"check --format=xml":        "xml",
		"check --only=gpu_lots":     "gpu_lost",
		"check --fail-on=info":      "info",
		"stack 1.9":                 `PID: "1.9" is not a number`,
	} {
		mistaken := exitUsage
		if strings.HasPrefix(line, "check ") || strings.HasPrefix(line, "diag ") {
			mistaken = checkMistaken
		}

		var out, said bytes.Buffer
		if status := Run(t.Context(), t.TempDir(), strings.Fields(line), &out, &said); status != mistaken || out.Len() > 0 {
			t.Errorf("%s: exit status %d, want %d; %s", line, status, mistaken, &out)
		}
		if !strings.Contains(said.String(), want) || !strings.HasSuffix(said.String(), "; see gpusteward --help\n") {
			t.Errorf("%s: %q, want %q", line, said.String(), want)
		}
	}
}

// TestConfigCheckWarnsOfOlderKeys: config check says what the agent would log.
func TestConfigCheckWarnsOfOlderKeys(t *testing.T) {
	t.Parallel()
	file := fixture.Config(t, "web: {max_scrapes: 5}\nhealth: {page: [slow_gpu]}\n")
	var out, said bytes.Buffer
	if status := Run(t.Context(), t.TempDir(), []string{"config", "check", file}, &out, &said); status != 0 || said.Len() > 0 {
		t.Fatalf("exit status %d, %s", status, &said)
	}
	for _, want := range []string{"is good.\n", "warning: web.max_scrapes no longer has an effect",
		"warning: health.page is the older name of health.enable_alerts"} {
		fixture.Contains(t, out.String(), want, "it says")
	}
}
