package incident

import (
	"encoding/json"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
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
	fixture.Fails(t, json.Unmarshal([]byte(`{"severity":"bad"}`), &back), "emergency", "a severity that is none")
}

func TestEntitiesArePrintedReadably(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Entity{"node": {}, "gpu=3": {GPU: "3", UUID: "GPU-x"}, "gpu=3,link=7": {GPU: "3",
		Link: "7"}, "uuid=GPU-x": {UUID: "GPU-x"}, "device=mlx5_0/1": {Device: "mlx5_0/1"}} {
		fixture.Equal(t, e.String(), want, "%+v is written", e)
	}
}
