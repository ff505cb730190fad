/* SPDX-License-Identifier: Apache-2.0
 * From init to connections, where any call may fail and the other side may vanish. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_side.h"

enum { CONNECT_MS = 8000, UNTOLD_MS = 1000, CROWD_MS = 1000 };

struct hello {
  int32_t fine, group;
  char handle[KIT_FAULT_COMMS][RAIL_NET_HANDLE_SIZE];
};

static bool start(struct kit_faulty *f, int *group) {
  struct rail_net_config config = {.traffic_class = -1};
  struct rail_net_props_v12 props;
  const struct rail_net_v12 *vt = f->net.vt;
  int dev = kit_side_job(f->side)->dev;
  int rc = vt->init(&f->net.ctx, f->plan.seed, &config, kit_net_log, NULL);
  const char *call = "init";
  if (rc == 0) rc = vt->devices(&f->net.ndev), call = "devices";
  if (rc == 0 && f->net.ndev <= dev) {
    /* A failing call may have hidden it: that is an error told, too. */
    if (f->plan.act != KIT_ACT_FAIL) kit_skip("the plugin has %d devices here, none with number %d", f->net.ndev, dev);
    rc = RAIL_SYSTEM_ERROR;
  }
  f->net.dev = dev;
  if (rc == 0) rc = kit_net_fuse(&f->net), call = "makeVDevice";
  if (rc == 0) rc = vt->get_properties(f->net.dev, &props), call = "getProperties";
  if (rc != 0) {
    kit_faulty_error(f, rc, call);
    return false;
  }
  *group = props.max_recvs < 1 ? 1 : props.max_recvs > KIT_TRAFFIC_BLOCK ? KIT_TRAFFIC_BLOCK : props.max_recvs;
  return true;
}

static bool listen_all(struct kit_faulty *f, struct hello *mine) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    if (kit_faulty_sends(f, i)) continue;
    int rc = f->net.vt->listen(f->net.ctx, f->net.dev, mine->handle[i], &f->listen[i]);
    if (rc == 0) continue;
    f->listen[i] = NULL;
    kit_faulty_error(f, rc, "listen");
    return false;
  }
  return true;
}

/* Not for one that was to be killed meanwhile. */
static bool waits_for_other(const struct kit_faulty *f) {
  return !(f->plan.act == KIT_ACT_KILL && f->plan.when == KIT_WHEN_CONNECTING);
}

/* True when it came. An error is noted. */
static bool connect_one(struct kit_faulty *f, int i, struct hello *theirs) {
  struct rail_net_device_handle *dh = NULL;
  bool sends = kit_faulty_sends(f, i);
  uint64_t before = rail_now_ns();
  int rc = sends ? f->net.vt->connect(f->net.ctx, f->net.dev, theirs->handle[i], &f->comm[i], &dh)
                 : f->net.vt->accept(f->listen[i], &f->comm[i], &dh);
  kit_faulty_timed(f, before, &f->told.call_ns);
  if (rc == 0) return f->comm[i] != NULL;
  f->comm[i] = NULL;
  kit_faulty_error(f, rc, sends ? "connect" : "accept");
  return false;
}

/* Has the other side said how it went? Then until when this side tries on: not for long when the other gave up, nor,
 * where calls fail, when it has all it wanted; a failure may have been at this end of a connection. */
static uint64_t try_until(struct kit_faulty *f, uint64_t until) {
  if (f->peer_said != '?' || !waits_for_other(f) || !kit_heard(f->side, f->peer, 1)) return until;
  kit_get(f->side, f->peer, &f->peer_said, 1);
  bool soon = f->peer_said == 'n' || f->plan.act == KIT_ACT_FAIL;
  return soon ? rail_deadline_in_ms(UNTOLD_MS) : until;
}

static bool connect_all(struct kit_faulty *f, struct hello *theirs) {
  uint64_t limit = f->plan.goal == KIT_GOAL_TOLD ? f->plan.patience_ms : CONNECT_MS;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(limit));
  for (int left = 1; left > 0; usleep(20)) {
    left = 0;
    for (int i = 0; i < (int)f->plan.comms && !f->told.code; i++)
      left += !f->comm[i] && !connect_one(f, i, theirs);
    if (f->told.code) return false;
    deadline = try_until(f, deadline);
    if (left > 0 && rail_deadline_passed(deadline)) return false;
  }
  return true;
}

/* What happens while connecting happens soon after this. */
static void wait_for_moment(const struct kit_faulty *f) {
  uint64_t moment = f->event_ns - f->plan.delay_us * 1000, now = rail_now_ns();
  if (moment > now) usleep((useconds_t)((moment - now) / 1000));
}

static void wait_for_crowd(struct kit_faulty *f) {
  uint64_t deadline = rail_deadline_in_ms(CROWD_MS);
  if (f->plan.act != KIT_ACT_STRANGERS || !kit_faulty_is_victim(f)) return;
  while (kit_hand_strangers(f->hand) < (int)f->plan.count / 2 && !rail_deadline_passed(deadline)) usleep(500);
}

static bool open_flows(struct kit_faulty *f) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    struct kit_flow *flow = &f->flow[i];
    rail_result_t r = kit_flow_open(flow, &f->traffic, f->net.any, f->comm[i], kit_faulty_sends(f, i), (uint32_t)i);
    if (r != RAIL_OK) {
      kit_faulty_error(f, (int)r, "regMr");
      return false;
    }
    f->nflows++;
  }
  return true;
}

/* Both say how it went. */
static bool both(struct kit_faulty *f, bool fine) {
  char mine = fine ? 'y' : 'n';
  if (!waits_for_other(f)) return fine;
  kit_put(f->side, f->peer, &mine, 1);
  if (f->peer_said == '?') kit_get(f->side, f->peer, &f->peer_said, 1);
  return fine && f->peer_said == 'y';
}

static bool hellos(struct kit_faulty *f, bool fine, int group, struct hello *mine, struct hello *theirs) {
  mine->fine = fine;
  mine->group = group;
  kit_swap(f->side, f->peer, mine, theirs, sizeof *mine);
  int least = theirs->group < group ? theirs->group : group;
  f->traffic.group = (int)f->plan.group < least ? (int)f->plan.group : least;
  f->traffic.oldest_only = least == 1; /* whether more is asked of such a plugin is for conform to find */
  return fine && theirs->fine;
}

bool kit_faulty_meet(struct kit_faulty *f) {
  static struct hello mine, theirs;
  f->peer_said = '?';
  int group = 1;
  memset(&mine, 0xa5, sizeof mine);
  bool fine = start(f, &group);
  if (fine) f->told.phase = KIT_PHASE_CONNECT;
  fine = fine && listen_all(f, &mine);
  if (!hellos(f, fine, group, &mine, &theirs)) return false;
  if (f->plan.when == KIT_WHEN_CONNECTING) {
    kit_faulty_agree(f);
    wait_for_moment(f);
    wait_for_crowd(f);
  }
  uint64_t begin = rail_now_ns();
  fine = connect_all(f, &theirs);
  if (fine) f->told.connect_ns = (int64_t)(rail_now_ns() - begin);
  fine = fine && open_flows(f);
  return both(f, fine);
}
