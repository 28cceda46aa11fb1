package incident

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEventsSurviveJSON(t *testing.T) {
	t.Parallel()
	e := Event{Version: EventVersion, ID: "a", Kind: KindIncident, Entity: Entity{GPU: "3", UUID: "GPU-x", Link: "7"},
		Severity: Critical, From: OK, To: Unhealthy}
	text, err := json.Marshal(e)
	if err != nil || !strings.Contains(string(text), `"severity":"critical","from":"ok","to":"unhealthy"`) {
		t.Fatalf("%s, %v", text, err)
	}
	var back Event
	if err := json.Unmarshal(text, &back); err != nil || back.Severity != Critical || back.To != Unhealthy ||
		back.Entity != e.Entity {
		t.Errorf("%+v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"severity":"bad"}`), &back); err == nil ||
		!strings.Contains(err.Error(), "emergency") {
		t.Errorf("a severity that is none: %v, want the names that there are", err)
	}
}

func TestEntitiesArePrintedReadably(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Entity{"node": {}, "gpu=3": {GPU: "3", UUID: "GPU-x"}, "gpu=3,link=7": {GPU: "3",
		Link: "7"}, "uuid=GPU-x": {UUID: "GPU-x"}, "device=mlx5_0/1": {Device: "mlx5_0/1"}} {
		if got := e.String(); got != want {
			t.Errorf("%+v is written %q, want %q", e, got, want)
		}
	}
}
