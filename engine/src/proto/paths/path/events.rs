//! Events of a path's packets, for the message layer.

use super::super::PathCx;
use super::uncommon::PathReasons;
use super::{PathValidation, SessionPath};
use crate::proto::context::Cx;
use crate::proto::effects::Effects;
use crate::proto::packet::PacketEvent;
use crate::proto::session::Session;

impl SessionPath {
    /// Returns whether it has no events for the message layer but acknowledgements.
    #[inline]
    pub(in crate::proto::paths) fn is_calm(&self) -> bool {
        self.is_free_of(PathReasons::UNPROVEN)
            && self.packets.is_calm()
            && shortcut!("a loss-free path")
    }

    /// Delivers the path's events to the message layer. Returns `true` if there were only
    /// acknowledgements.
    ///
    /// RR-PATH-2, RR-PATH-3.
    #[inline]
    pub(in crate::proto::paths) fn deliver_events(
        &mut self,
        session: &mut Session,
        cx: Cx<'_>,
        effects: &mut impl Effects,
    ) -> bool {
        self.is_calm() || self.deliver_pending_events(session, cx, effects)
    }

    /// Delivers them where it is not calm.
    pub(in crate::proto::paths) fn deliver_pending_events(
        &mut self,
        session: &mut Session,
        mut cx: Cx<'_>,
        effects: &mut impl Effects,
    ) -> bool {
        let mut is_calm = true;
        self.packets.apply_deferred_ack_if_due(|token| {
            session.handle_segment_acked(cx.reborrow(), token, effects);
        });
        while let Some(event) = self.packets.poll_known_event() {
            match event {
                PacketEvent::Acked { token } => {
                    session.handle_segment_acked(cx.reborrow(), token, effects);
                    continue;
                }
                PacketEvent::Lost { token } => {
                    session.segments_mut().handle_segment_lost(cx.reborrow(), token)
                }
                // With several paths the smallest counts.
                PacketEvent::PayloadBytesMax { bytes } if self.rail_health.is_none() => {
                    session.segments_mut().set_segment_bytes(cx.reborrow(), bytes);
                }
                PacketEvent::PayloadBytesMax { .. } => {}
            }
            is_calm = false;
        }
        let before = self.validation;
        match before {
            // With several paths it is silent when it is down: the TCP lane may have failed, too.
            PathValidation::Good if self.packets.is_silent() && !self.is_active() => {
                tracing::debug!(session = cx.slot, "path does not answer; messages use TCP");
                self.needs_sum = true;
                self.set_validation(PathValidation::Silent);
                cx.shared.processes_mut().note_silent_path(cx.slot);
                self.resend(session, cx);
            }
            PathValidation::Untried if self.packets.is_answered() && !self.is_off => {
                self.set_validation(PathValidation::Good);
            }
            PathValidation::Silent if self.packets.load().2 == 0 && !self.is_off => {
                tracing::debug!(session = cx.slot, "path answers again");
                self.set_validation(PathValidation::Good);
            }
            _ => {}
        }
        is_calm && self.validation == before
    }

    /// Processes received packets. Returns `true` if there were any.
    #[inline(always)]
    pub(in crate::proto::paths) fn drain(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        effects: &mut impl Effects,
    ) -> bool {
        let had_update = self.visits.take_update();
        if had_update {
            self.deliver_events(session, cx.cx(), effects);
            self.set_timer(cx.slot(), &mut cx.shared.timers);
        }
        had_update
    }

    /// Processes received packets and deferred acknowledgements.
    pub(in crate::proto::paths) fn drain_deferred(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        effects: &mut impl Effects,
    ) {
        self.packets.apply_deferred_ack();
        self.visits.take_update();
        self.deliver_events(session, cx.cx(), effects);
        self.set_timer(cx.slot(), &mut cx.shared.timers);
    }
}
