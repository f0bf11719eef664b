//! The negotiation, as a whole and by its rules.

use proptest::prelude::*;

use super::alter::alter;
use super::check::check;
use super::given::Given;
use super::offer::Offer;
use super::{Question, memory};
use crate::abi::consts::*;
use crate::abi::info::fi_info;
use crate::address::{FORMAT_OPAQUE, Format, Location};
use crate::errno::Errno;

const API: u32 = version(1, 17);

/// Frees what C would.
struct Infos(*mut fi_info);

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: it came from `memory::write`.
        unsafe { memory::free(self.0) }
    }
}

fn whole(api_version: u32) -> Offer {
    Offer::whole(FI_EP_RDM, api_version, Format::Opaque, 16 * 1024)
}

/// Hints as `fi_allocinfo` gives them: nothing asked for.
fn hints(api_version: u32) -> Given {
    let written = Infos(memory::write(&whole(api_version), api_version).unwrap());
    // SAFETY: it was written just now.
    let mut given = unsafe { Given::read(written.0, api_version) }.unwrap();
    given.info.caps = 0;
    given.info.addr_format = FI_FORMAT_UNSPEC;
    (given.domain_name, given.fabric_name) = (None, None);
    // SAFETY: 0 is a value of each of their fields.
    unsafe {
        given.tx = Some(std::mem::zeroed());
        given.rx = Some(std::mem::zeroed());
        given.ep = Some(std::mem::zeroed());
        given.domain = Some(std::mem::zeroed());
    }
    given
}

/// Returns the result of hints.
fn negotiate(hints: &Given, api_version: u32) -> Result<Offer, String> {
    let mut offer = whole(api_version);
    check(&offer, hints, api_version)?;
    alter(&mut offer, Some(hints), api_version);
    Ok(offer)
}

fn with(change: impl FnOnce(&mut Given)) -> Result<Offer, String> {
    let mut hints = hints(API);
    change(&mut hints);
    negotiate(&hints, API)
}

macro_rules! of {
    ($hints:ident.$part:ident) => {
        $hints.$part.as_mut().unwrap()
    };
}

#[test]
fn no_hints_give_all_that_there_is() {
    let mut offer = whole(API);
    let offered = offer.caps;
    alter(&mut offer, None, API);
    assert_eq!(offer.caps, offered);
    assert_eq!((offer.domain.mr_mode, offer.domain.av_type), (0, FI_AV_UNSPEC));
    assert_eq!((offer.tx.op_flags, offer.rx.op_flags), (0, 0));
}

/// The hints of Open MPI's mtl/ofi, its btl/ofi and MPICH, as observed.
#[test]
fn hints_of_mpi_libraries_are_met() {
    let tagged = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
    let mtl = with(|hints| {
        hints.info.caps = tagged;
        hints.info.mode = FI_CONTEXT | FI_CONTEXT2;
        of!(hints.ep).r#type = FI_EP_RDM;
        of!(hints.domain).threading = FI_THREAD_DOMAIN;
        of!(hints.domain).av_type = FI_AV_MAP;
        of!(hints.domain).resource_mgmt = FI_RM_ENABLED;
        of!(hints.tx).msg_order = FI_ORDER_SAS;
        of!(hints.rx).msg_order = FI_ORDER_SAS;
        of!(hints.tx).op_flags = FI_COMPLETION;
    });
    let mtl = mtl.unwrap();
    assert_eq!(mtl.caps & tagged, tagged);
    assert_eq!(mtl.caps & (FI_MSG | FI_RMA | FI_ATOMIC | FI_SOURCE), 0, "not requested");
    assert_eq!(mtl.caps & (FI_SEND | FI_RECV), FI_SEND | FI_RECV);
    assert_eq!(mtl.domain.caps, FI_LOCAL_COMM | FI_REMOTE_COMM);
    assert_eq!(mtl.domain.threading, FI_THREAD_DOMAIN, "MPICH compares it");
    assert_eq!((mtl.domain.av_type, mtl.tx.op_flags), (FI_AV_MAP, FI_COMPLETION));

    let btl = with(|hints| {
        hints.info.caps = FI_RMA | FI_ATOMIC;
        of!(hints.domain).mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        of!(hints.tx).op_flags = FI_DELIVERY_COMPLETE;
    });
    let btl = btl.unwrap();
    assert_eq!(btl.domain.mr_mode, 0, "none of the bits is needed");
    let directions = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    assert_eq!(btl.caps & directions, directions);

    let mpich = with(|hints| {
        hints.info.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV;
        of!(hints.domain).control_progress = FI_PROGRESS_MANUAL;
        of!(hints.domain).data_progress = FI_PROGRESS_MANUAL;
        of!(hints.tx).op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    });
    assert_eq!(mpich.unwrap().domain.data_progress, FI_PROGRESS_MANUAL);
}

#[test]
fn unsupported_hints_are_refused_by_name() {
    type Change = fn(&mut Given);
    let refused: [(&str, Change); 14] = [
        ("endpoints of type 1", |hints| of!(hints.ep).r#type = FI_EP_MSG),
        ("capability", |hints| hints.info.caps = FI_MULTICAST),
        ("fabric", |hints| hints.fabric_name = Some("10.0.0.0/8".into())),
        ("domain", |hints| hints.domain_name = Some("eth0".into())),
        ("threading 6", |hints| of!(hints.domain).threading = 6),
        ("cq_data_size", |hints| of!(hints.domain).cq_data_size = 9),
        ("mr_mode", |hints| of!(hints.domain).mr_mode = FI_MR_BASIC),
        ("auth_key_size", |hints| of!(hints.ep).auth_key_size = 4),
        ("tx_ctx_cnt", |hints| of!(hints.ep).tx_ctx_cnt = FI_SHARED_CONTEXT),
        ("sender's order", |hints| of!(hints.tx).msg_order = FI_ORDER_WAW),
        ("receiver's flag", |hints| of!(hints.rx).op_flags = FI_MATCH_COMPLETE),
        ("inject_size", |hints| of!(hints.tx).inject_size = 16 * 1024 + 1),
        ("completions in order", |hints| of!(hints.tx).comp_order = 1),
        ("rma_iov_limit", |hints| of!(hints.tx).rma_iov_limit = 2),
    ];
    for (name, change) in refused {
        let why = with(change).expect_err(name);
        assert!(why.contains(name), "{why}");
    }
}

#[test]
fn old_applications_get_the_old_mode_of_regions() {
    let old = version(1, 4);
    let offer = negotiate(&hints(old), old).unwrap();
    assert_eq!(offer.domain.mr_mode, FI_MR_SCALABLE);
    let offer = with(|hints| of!(hints.domain).mr_mode = FI_MR_SCALABLE).unwrap();
    assert_eq!(offer.domain.mr_mode, FI_MR_SCALABLE);
    assert!(with(|it| of!(it.domain).mr_mode = FI_MR_SCALABLE | FI_MR_LOCAL).is_err());
}

fn ask(question: &Question<'_>) -> Result<(u32, Location, Option<Location>), Errno> {
    let answers = question.answers()?;
    assert_eq!(answers.len(), 1, "one info for all rails");
    let offer = &answers[0];
    let decode = |bytes| offer.format.decode(bytes).unwrap();
    let source = decode(offer.src_addr.as_deref().expect("each info has a source"));
    Ok((offer.format.number(), source, offer.dest_addr.as_deref().map(decode)))
}

#[test]
fn node_and_service_are_places() {
    let plain = Question { api_version: API, node: None, service: None, flags: 0, hints: None };
    let (format, source, destination) = ask(&plain).unwrap();
    assert_eq!((format, destination), (FORMAT_OPAQUE, None));
    assert_eq!(source.place().port(), 0);

    let node = Some("127.0.0.1");
    let peer = Question { node, service: Some("7471"), flags: FI_NUMERICHOST, ..plain };
    let (_, source, destination) = ask(&peer).unwrap();
    assert_eq!(destination, Some(Location::Place("127.0.0.1:7471".parse().unwrap())));
    assert!(source.place().ip().is_loopback(), "a loopback peer gets a loopback source");

    let local = Question { flags: FI_SOURCE | FI_NUMERICHOST, ..peer };
    let (_, source, destination) = ask(&local).unwrap();
    assert_eq!(source, Location::Place("127.0.0.1:7471".parse().unwrap()));
    assert_eq!(destination, None);

    let elsewhere = Question { node: Some("198.51.100.7"), ..local };
    assert_eq!(ask(&elsewhere), Err(Errno::NODATA), "no NIC of this host has it");
    let core = Question { flags: OFI_CORE_PROV_ONLY, ..plain };
    assert_eq!(ask(&core), Err(Errno::NODATA), "utility providers are not for it");
}

#[test]
fn socket_addresses_are_returned_on_request() {
    for asked in [FI_SOCKADDR, FI_SOCKADDR_IN] {
        let mut hints = hints(API);
        hints.info.addr_format = asked;
        let question = Question {
            api_version: API,
            node: Some("127.0.0.1"),
            service: Some("7471"),
            flags: 0,
            hints: Some(&hints),
        };
        let (format, _, destination) = ask(&question).unwrap();
        assert_eq!(format, FI_SOCKADDR_IN);
        assert_eq!(destination.unwrap().place().port(), 7471);
        assert_eq!(question.answers().unwrap()[0].domain.ep_cnt, 1, "one endpoint at a place");
    }
    let mut hints = hints(API);
    hints.info.addr_format = 7;
    let question =
        Question { api_version: API, node: None, service: None, flags: 0, hints: Some(&hints) };
    assert_eq!(ask(&question), Err(Errno::NODATA));
}

#[test]
fn c_structures_round_trip() {
    let mut offer = whole(API);
    alter(&mut offer, None, API);
    let place = "10.0.0.1:5".parse().unwrap();
    offer.src_addr = Some(Format::Opaque.encode_place(place));
    let written = Infos(memory::write(&offer, API).unwrap());
    // SAFETY: it was written just now.
    let given = unsafe { Given::read(written.0, API) }.unwrap();
    assert_eq!((given.info.caps, given.info.addr_format), (offer.caps, FORMAT_OPAQUE));
    assert_eq!(given.source(), Ok(Some(Location::Place(place))));
    assert_eq!(given.destination(), Ok(None));
    assert_eq!(given.domain_name.as_deref(), Some("ringrail"));
    assert_eq!(given.domain.unwrap().max_ep_auth_key, 0, "not of that version");
    // SAFETY: as above.
    assert!(unsafe { (*(*written.0).fabric_attr).prov_name }.is_null(), "libfabric's to fill in");
}

/// Of what is asked for any part, in range or not.
fn any_hints() -> impl Strategy<Value = Given> {
    let bits = prop_oneof![
        Just(0_u64),
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        any::<u64>().prop_map(|it| it & whole(API).caps),
    ];
    let small = prop_oneof![Just(0_usize), 0..3_usize, any::<usize>(), 0..70_000_usize];
    let numbers = prop::collection::vec(small, 12);
    let words = prop::collection::vec(bits, 7);
    let kinds = prop::collection::vec(-1..8_i32, 6);
    (numbers, words, kinds, prop_oneof![Just(0_i32), 0..4096_i32]).prop_map(
        |(numbers, words, kinds, mr_mode)| {
            let mut hints = hints(API);
            hints.info.caps = words[0];
            let (tx, rx) = (of!(hints.tx), of!(hints.rx));
            (tx.caps, tx.op_flags, tx.msg_order) = (words[1], words[2] & words[3], words[4]);
            (tx.inject_size, tx.size, tx.iov_limit) = (numbers[0], numbers[1], numbers[2]);
            (rx.caps, rx.op_flags, rx.msg_order) = (words[5], words[6] & words[2], words[4]);
            (rx.size, rx.iov_limit) = (numbers[3], numbers[4]);
            let (ep, domain) = (of!(hints.ep), of!(hints.domain));
            (ep.r#type, ep.max_msg_size, ep.tx_ctx_cnt) = (kinds[0], numbers[5], numbers[6]);
            (domain.threading, domain.data_progress) = (kinds[1], kinds[2]);
            (domain.control_progress, domain.av_type) = (kinds[3], kinds[4]);
            (domain.resource_mgmt, domain.mr_mode) = (kinds[5], mr_mode);
            (domain.cq_data_size, domain.mr_cnt) = (numbers[7], numbers[8]);
            hints
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is given holds what was asked for, and no more than there is.
    #[test]
    fn given_capabilities_are_requested_and_offered(hints in any_hints()) {
        let Ok(given) = negotiate(&hints, API) else { return Ok(()) };
        let offered = whole(API);
        prop_assert_eq!(given.caps & hints.info.caps, hints.info.caps);
        prop_assert_eq!(given.caps & !offered.caps, 0);
        prop_assert_eq!(given.tx.caps & !offered.tx.caps, 0);
        prop_assert_eq!(given.rx.caps & !offered.rx.caps, 0);
        let tx = hints.tx.unwrap();
        prop_assert_eq!(given.tx.op_flags, tx.op_flags);
        prop_assert_eq!(given.tx.msg_order & tx.msg_order, tx.msg_order);
        prop_assert!(given.tx.size >= tx.size && given.tx.size <= offered.tx.size);
        prop_assert!(given.tx.inject_size >= tx.inject_size);
        let domain = hints.domain.unwrap();
        prop_assert!([0, given.domain.threading].contains(&domain.threading));
        prop_assert!([0, given.domain.data_progress].contains(&domain.data_progress));
        prop_assert!([0, given.domain.av_type].contains(&domain.av_type));
        if domain.mr_mode != FI_MR_SCALABLE {
            prop_assert_eq!(given.domain.mr_mode & !domain.mr_mode, 0);
        }
    }

    /// A returned info used as hints returns the same: MPICH asks twice.
    #[test]
    fn an_answer_is_its_own_answer(hints in any_hints()) {
        let Ok(first) = negotiate(&hints, API) else { return Ok(()) };
        let written = Infos(memory::write(&first, API).unwrap());
        // SAFETY: it was written just now.
        let again = unsafe { Given::read(written.0, API) }.unwrap();
        let second = negotiate(&again, API).map_err(TestCaseError::fail)?;
        prop_assert_eq!(second.caps, first.caps);
        prop_assert_eq!(second.tx.caps, first.tx.caps);
        prop_assert_eq!(second.domain.mr_mode, first.domain.mr_mode);
        prop_assert_eq!(second.tx.size, first.tx.size);
    }
}

/// The info of `FI_CONNREQ` does not pass through `fi_getinfo`; fabtests of libfabric 2.7 look for
/// the provider's name in it.
#[test]
fn the_info_of_a_connection_request_names_the_provider() {
    let infos = Infos(memory::write_named(&whole(API), API).unwrap());
    // SAFETY: it was written just now.
    let fabric = unsafe { &*(*infos.0).fabric_attr };
    // SAFETY: as above.
    let name = unsafe { std::ffi::CStr::from_ptr(fabric.prov_name) };
    assert_eq!((name, fabric.prov_version), (crate::PROVIDER_NAME, crate::PROVIDER_VERSION));
    assert_eq!(fabric.api_version, API);
}
